"""Removal meets real mount points: it leaves them and what they show alone, and says so."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from forkyard.base.removal import empty_trash

_CHILD = """
import sys
from pathlib import Path
from forkyard.base.removal import remove_tree, move_to_trash
from forkyard.errors import WorkspaceError
from forkyard.shim import kernel
root = Path(sys.argv[1])
kernel.unshare(kernel.CLONE_NEWNS)
kernel.mount("none", "/", "none", kernel.MS_REC | kernel.MS_PRIVATE)
for target in ("tree/sub/mounted", "tree/file", "whole"):
    source = "outside/sentinel" if target.endswith("file") else "outside"
    kernel.mount(str(root / source), str(root / target), "none", kernel.MS_BIND)
for name in ("tree", "whole"):
    try:
        remove_tree(root / name, root / "trash")
    except WorkspaceError as error:
        print(name, error.message)
    else:
        print(name, "removed")
assert (root / "outside/sentinel").read_text() == "alive"
assert not (root / "tree").exists()
"""


def test_mounted_directory_stays_when_its_parent_is_removed(tmp_path: Path) -> None:
    """Bind mounts inside a removed tree are neither entered nor emptied."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/sentinel").write_text("alive")
    (tmp_path / "tree/sub/mounted").mkdir(parents=True)
    (tmp_path / "tree/file").write_text("covered")
    (tmp_path / "tree/plain").write_text("x")
    (tmp_path / "whole").mkdir()
    source = Path(__file__).parents[2] / "src"
    child = subprocess.run(
        [sys.executable, "-c", _CHILD, str(tmp_path)],
        env={"PYTHONPATH": str(source), "PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert child.returncode == 0, child.stderr
    told = dict(line.split(" ", 1) for line in child.stdout.splitlines())
    assert "cannot remove all of" in told["tree"]
    assert "cannot remove" in told["whole"]
    assert (tmp_path / "outside/sentinel").read_text() == "alive"
    # the mounts died with the child's namespace: a later pass takes the rest
    assert empty_trash(tmp_path / "trash") == ()
