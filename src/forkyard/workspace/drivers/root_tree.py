"""The sandbox's root file system as a folder on disk, made once and mounted by every start.

Writing its hundred small files anew would cost each start more than the container itself. The
folder is named by what is in it, so a change of the machine's settings makes another one.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import stat
from collections.abc import Sequence
from pathlib import Path

from forkyard.workspace.image_host import LARGEST_FILE_BYTES, HostEntry

TREE, EMPTY = "tree", "empty"
"""overlayfs wants two lower folders; the second one is there for that."""


def is_copied(entry: HostEntry) -> bool:
    """Say whether a bind of the host is small enough to be taken over as files."""
    return entry.kind == "bind" and entry.target.startswith("/etc/")


def ensure_root(roots: Path, entries: Sequence[HostEntry], mount_points: Sequence[str]) -> Path:
    """Make the folder for these entries, or find it made.

    Args:
        roots: Where such folders lie.
        entries: What of the host is shown (image_host).
        mount_points: Further folders that something is mounted on.

    Returns:
        A folder that holds `tree` and `empty`.
    """
    folder = roots / _digest(entries, mount_points)
    if folder.is_dir():
        os.utime(folder)  # in use by this server: what removes old ones looks at it
        return folder
    roots.mkdir(mode=0o700, parents=True, exist_ok=True)
    making = folder.with_name(f".{folder.name}.{os.getpid()}")
    shutil.rmtree(making, ignore_errors=True)
    (making / EMPTY).mkdir(parents=True)
    tree = making / TREE
    tree.mkdir()
    before = os.umask(0o022)
    try:
        for entry in entries:
            _make(tree, entry)
        for target in mount_points:
            _inside(tree, target).mkdir(parents=True, exist_ok=True)
    finally:
        os.umask(before)
    for path in (making, tree, making / EMPTY):
        path.chmod(0o755)
    for name in ("tmp", "var/tmp"):
        # runc gives a tmpfs the mode of the folder it covers, whatever its options say.
        if (tree / name).is_dir():
            (tree / name).chmod(0o1777)
    with contextlib.suppress(FileExistsError, OSError):
        making.rename(folder)
    shutil.rmtree(making, ignore_errors=True)
    return folder


def _inside(tree: Path, target: str) -> Path:
    return tree / target.lstrip("/")


def _make(tree: Path, entry: HostEntry) -> None:
    path = _inside(tree, entry.target)
    path.parent.mkdir(parents=True, exist_ok=True)
    if entry.kind == "symlink":
        path.symlink_to(entry.source or "")
    elif entry.kind == "file":
        path.write_bytes(entry.content or b"")
    elif entry.kind == "directory" or not is_copied(entry):
        if entry.kind == "directory" or Path(entry.source or "/").is_dir():
            path.mkdir(exist_ok=True)
        else:
            path.touch()
    else:
        _copy(Path(entry.source or "/"), path)


def _copy(source: Path, target: Path) -> None:
    """Take over what everybody on the machine may read, and nothing else."""
    target.mkdir(exist_ok=True)
    for entry in sorted(os.scandir(source), key=lambda one: one.name):
        facts = entry.stat(follow_symlinks=False)
        path = target / entry.name
        if stat.S_ISLNK(facts.st_mode):
            path.symlink_to(Path(entry.path).readlink())
        elif not facts.st_mode & stat.S_IROTH:
            continue
        elif stat.S_ISDIR(facts.st_mode):
            _copy(Path(entry.path), path)
        elif stat.S_ISREG(facts.st_mode) and facts.st_size <= LARGEST_FILE_BYTES:
            path.write_bytes(Path(entry.path).read_bytes())


def _digest(entries: Sequence[HostEntry], mount_points: Sequence[str]) -> str:
    digest = hashlib.sha256()
    for entry in entries:
        digest.update(repr((entry.kind, entry.target, entry.source)).encode())
        digest.update(entry.content or b"")
        if is_copied(entry):
            for folder, folders, names in os.walk(entry.source or "/"):
                folders.sort()
                for name in sorted(names):
                    with contextlib.suppress(OSError):
                        facts = os.lstat(os.path.join(folder, name))  # noqa: PTH118 - hot
                        digest.update(
                            f"{folder}/{name} {facts.st_size} {facts.st_mtime_ns}".encode()
                        )
    digest.update(repr(sorted(mount_points)).encode())
    return digest.hexdigest()[:16]
