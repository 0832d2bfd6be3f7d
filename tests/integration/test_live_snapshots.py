"""Snapshots of running workspaces: frozen, whole, at the cost of what was written."""

from __future__ import annotations

import asyncio
import json
import os
import stat
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from forkyard.model.ids import SnapshotId
from forkyard.model.workspace import SnapshotState, WorkspaceState
from station import Station, station

pytestmark = pytest.mark.anyio

KINDS = r"""
import os, socket, time
os.chdir("/workspace")
os.makedirs("many/inner"); open("many/first", "w").write("linked")
os.link("many/first", "many/second"); os.link("many/first", "many/inner/third")
with open("sparse", "wb") as f:
    f.write(b"a"); f.seek(64 << 20); f.write(b"z")
os.setxattr("sparse", "user.note", b"kept")
os.mkfifo("pipe"); os.symlink("../nowhere", "link")
socket.socket(socket.AF_UNIX).bind("sock")
os.chmod("many/inner", 0o2750); os.chmod("sparse", 0o640)
os.utime("sparse", ns=(10**18 + 5, 10**18 + 7))
import shutil
os.remove("repo/old"); os.rename("repo/text", "repo/moved")
shutil.rmtree("repo/folder"); os.mkdir("repo/folder"); open("repo/folder/new", "w").close()
gone = open("gone", "w"); gone.write("x" * 100); os.remove("gone")
print("ready", flush=True); time.sleep(600)
"""
LOOK = r"""
import json, os, stat
os.chdir("/workspace")
s = os.stat
print(json.dumps({
    "links": [s("many/first").st_nlink, len({s(n).st_ino for n in
              ("many/first", "many/second", "many/inner/third")})],
    "sparse": [s("sparse").st_size, s("sparse").st_blocks < 1024, oct(s("sparse").st_mode),
               s("sparse").st_mtime_ns, os.getxattr("sparse", "user.note").decode()],
    "kinds": [stat.S_ISFIFO(s("pipe").st_mode), os.readlink("link"),
              stat.S_ISSOCK(os.lstat("sock").st_mode)],
    "inner": oct(s("many/inner").st_mode),
    "repo": sorted(os.listdir("repo")), "folder": os.listdir("repo/folder"),
    "gone": os.path.exists("gone"),
    "owner": {s(n).st_uid for n in os.listdir(".") if n != "link"}.pop(),
}))
"""


@pytest.fixture
async def here(home: Path) -> AsyncIterator[Station]:
    """Give the services over an empty state directory."""
    async with station(home) as opened:
        yield opened


async def _origin(here: Station) -> str:
    empty = await here.snapshot_of(None)
    first = await here.workspaces.create(empty.id)
    await here.run(
        first.id,
        "mkdir -p repo/folder; echo t > repo/text; echo o > repo/old; echo b > repo/folder/before",
        directory="/workspace",
    )
    await here.workspaces.stop(first.id)
    return (await here.snapshots.create("origin", first.id)).id


async def test_all_kinds_of_files_are_as_they_were_when_taken_while_running(here: Station) -> None:
    """Links, holes, attributes, whiteouts, opaque folders, sockets; not what was deleted."""
    row = await here.workspaces.create(SnapshotId(await _origin(here)))
    await here.run(row.id, f"cat > /tmp/kinds.py <<'END'\n{KINDS}\nEND", directory="/workspace")
    running = asyncio.create_task(
        here.shell(row.id, "exec python3 /tmp/kinds.py", directory="/workspace")
    )
    while "ready" not in "".join(
        p.read_text() for p in here.layout.workspace(row.id).glob("execs/*/stdout")
    ):
        await asyncio.sleep(0.02)
    before = here.workspaces.get(row.id)
    taken = await here.snapshots.create("live", row.id)
    assert taken.state is SnapshotState.READY
    assert taken.frozen_seconds is not None
    assert 0 < taken.frozen_seconds < 60
    assert taken.layers[1:] == row.layers
    assert here.workspaces.get(row.id).layers == before.layers
    assert here.workspaces.get(row.id).state is WorkspaceState.RUNNING
    assert not running.done()

    fork = await here.workspaces.create(taken.id)
    said = json.loads(
        await here.run(fork.id, f"python3 - <<'END'\n{LOOK}\nEND", directory="/workspace")
    )
    assert said == {
        "links": [3, 1],
        "sparse": [(64 << 20) + 1, True, "0o100640", 10**18 + 7, "kept"],
        "kinds": [True, "../nowhere", True],
        "inner": "0o42750",
        "repo": ["folder", "moved"],
        "folder": ["new"],
        "gone": False,
        "owner": 1000,
    }
    # What the copy is, stopping would have made, but for what was open and deleted.
    await here.workspaces.stop(row.id)
    await running
    stopped = await here.snapshots.create("stopped", row.id)
    assert _listing(here, stopped.layers[0]) == _listing(here, taken.layers[0])
    assert stopped.base is not None
    assert taken.base is not None
    assert stopped.base.tree == taken.base.tree


def _listing(here: Station, layer: str) -> dict[str, object]:
    top = here.layout.layers / layer
    found: dict[str, object] = {}
    for folder, folders, names in os.walk(top):
        for name in (*folders, *names):
            path = Path(folder, name)
            facts = path.lstat()
            attributes = {}
            if not stat.S_ISLNK(facts.st_mode):
                attributes = {key: os.getxattr(path, key) for key in os.listxattr(path)}
            found[str(path.relative_to(top))] = (
                oct(facts.st_mode), facts.st_uid, facts.st_gid, facts.st_rdev, facts.st_mtime_ns,
                facts.st_size if stat.S_ISREG(facts.st_mode) else 0, attributes,
            )  # fmt: skip
    return found


async def test_a_counter_written_in_two_files_agrees_when_taken_while_it_runs(
    here: Station,
) -> None:
    """Nothing is written while the copy is made: the second file is never ahead of the first."""
    row = await here.workspaces.create(SnapshotId(await _origin(here)))
    script = (
        "i=0; while :; do i=$((i+1)); echo $i > a; echo $i > m/b; echo $i > z; echo $i >> log; done"
    )
    running = asyncio.create_task(
        here.shell(row.id, f"mkdir m; {script} 2>&1", directory="/workspace")
    )
    while not (here.layout.upper(row.id) / "workspace/log").exists():
        await asyncio.sleep(0.02)
    for number in range(5):
        taken = await here.snapshots.create(f"live{number}", row.id)
        top = here.layout.layer(taken.layers[0]) / "workspace"
        a, b, z = (int((top / name).read_text() or -1) for name in ("a", "m/b", "z"))
        logged = len((top / "log").read_text().splitlines())
        values = [value for value in (a, b, z) if value >= 0]
        assert max(values) - min(values) <= 1
        assert max(values) - 1 <= logged <= max(values)
    size = (here.layout.upper(row.id) / "workspace/log").stat().st_size
    while (here.layout.upper(row.id) / "workspace/log").stat().st_size == size:
        await asyncio.sleep(0.02)  # it runs on
    await here.workspaces.stop(row.id)
    await running
