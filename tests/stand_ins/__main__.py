"""The web servers as a process of their own: `python -m stand_ins SETTINGS`, a file of JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from stand_ins.web import Folders, serve


def main() -> None:
    """Serve until standard input ends."""
    settings = json.loads(Path(sys.argv[1]).read_text())
    folders = Folders(
        Path(settings["sites"]),
        Path(settings["claude"]),
        Path(settings["log"]),
        settings["user"],
        settings["token"],
    )
    serve(folders, Path(settings["certificate"]), Path(settings["key"]))
    sys.stdout.write("listening\n")
    sys.stdout.flush()
    sys.stdin.read()


main()
