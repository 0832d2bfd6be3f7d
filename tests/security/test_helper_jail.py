"""The process that looks at hostile trees holds next to nothing once it looks."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from forkyard.model.workspace import REPOSITORY
from forkyard.shim.ids import STORAGE_USER_ID
from stopped import Yard

_PROGRAM = """
import ctypes, json, os, resource, socket, struct, sys
from forkyard.candidate import jail
point, layer, upper, user, capability = sys.argv[1:]
views = jail.open_views(jail.Views(mount_point=point, layers=(layer,), upper=upper))
jail.confine(user=int(user), capability=int(capability))
libc = ctypes.CDLL(None, use_errno=True)
head, data = struct.pack("=Ii", 0x20080522, 0), ctypes.create_string_buffer(24)
libc.capget(ctypes.c_char_p(head), data)
def tried(act):
    try:
        act()
    except OSError as error:
        return type(error).__name__
    return "done"
def fork():
    if os.fork() == 0:
        os._exit(0)
print(json.dumps({
    "users": os.getresuid(), "groups": [*os.getresgid(), *os.getgroups()],
    "capabilities": struct.unpack("=6I", data.raw),
    "no_new_privileges": libc.prctl(39, 0, 0, 0, 0),
    "bounding": [n for n in range(41) if libc.prctl(23, n, 0, 0, 0) == 1],
    "root": os.listdir("/"), "passwd": tried(lambda: os.open("/etc/passwd", os.O_RDONLY)),
    "above": tried(lambda: os.open("../../../../etc/passwd", os.O_RDONLY)),
    "fork": tried(fork), "core": resource.getrlimit(resource.RLIMIT_CORE),
    "mount": libc.mount(b"x", b"/", b"tmpfs", 0, None), "chroot": tried(lambda: os.chroot("/")),
    "write": tried(lambda: os.open("new", os.O_CREAT | os.O_WRONLY, dir_fd=views.merged)),
    "repository": jail.open_repository(views.merged, "/workspace/repo") is not None,
    "linked": jail.open_repository(views.merged, "/workspace/linked") is not None,
    "away": jail.open_repository(views.merged, "/workspace/../../../etc") is not None,
}))
"""


@pytest.fixture
def yard(home: Path) -> Iterator[Yard]:
    """Give a state directory."""
    yield Yard(home)
    shutil.rmtree(home)


def _build(repository: Path) -> None:
    (repository / "a").write_text("a")


def test_reader_keeps_one_capability_and_sees_only_the_views(yard: Yard) -> None:
    """No host file, no other user, no new process, no write; links lead nowhere."""
    layer = yard.layer(_build)
    (yard.layout.layer(layer) / "workspace" / "linked").symlink_to("/etc")
    workspace = yard.fork(layer)
    point = yard.home / "point"
    point.mkdir()
    finished = subprocess.run(
        [sys.executable, "-c", _PROGRAM, point, yard.layout.layer(layer),
         yard.layout.upper(workspace.id), str(STORAGE_USER_ID), "2"],
        env={"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        check=False,
    )  # fmt: skip
    assert finished.returncode == 0, finished.stderr.decode()
    seen = json.loads(finished.stdout)
    assert seen == {
        "users": [STORAGE_USER_ID] * 3,
        "groups": [STORAGE_USER_ID] * 3,
        "capabilities": [1 << 2, 1 << 2, 0, 0, 0, 0],
        "no_new_privileges": 1,
        "bounding": [],
        "root": [],
        "passwd": "FileNotFoundError",
        "above": "FileNotFoundError",
        "fork": "BlockingIOError",
        "core": [0, 0],
        "mount": -1,
        "chroot": "PermissionError",
        "write": "OSError",
        "repository": True,
        "linked": False,
        "away": False,
    }
    assert str(point) not in Path("/proc/self/mounts").read_text()
    assert (yard.layout.layer(layer) / REPOSITORY.strip("/") / "a").read_text() == "a"
