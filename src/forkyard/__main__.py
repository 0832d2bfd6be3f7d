"""``python -m forkyard``: the command line."""

from __future__ import annotations

from forkyard.cli.main import main

if __name__ == "__main__":
    main()
