"""The benchmark as an ordinary user: the same rows, by a user that exists for it alone."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_ENTER = (
    "import sys; from pathlib import Path; from forkyard.client.rootless import enter;"
    " enter(Path(sys.argv.pop(1))); from benchmarks.__main__ import main; sys.exit(main())"
)


def is_entered() -> bool:
    """Say whether this process is root over an ordinary user's sub-ids already."""
    rows = Path("/proc/self/uid_map").read_text(encoding="ascii").split()
    return rows != ["0", "0", "4294967295"]


def run_as_ordinary_user(arguments: Sequence[str], parent: Path) -> int:
    """Run the benchmark once more, as such a user; give its exit status."""
    sys.path.insert(0, str(ROOT / "tests"))
    from ordinary import ordinary_user  # noqa: PLC0415 - found only now

    with ordinary_user(parent) as user:
        command = user.command(
            sys.executable, "-c", _ENTER, user.state, *arguments, f"--folder={user.home}",
            variables={"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}:{ROOT / 'tests'}"},
        )  # fmt: skip
        return subprocess.run(command, stdin=subprocess.DEVNULL, check=False).returncode
