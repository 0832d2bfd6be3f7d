"""The journal under SIGKILL, a full disk, and file systems that cannot keep it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from forkyard.base.clock import SystemClock
from forkyard.errors import StoreError
from forkyard.store.journal import Journal
from forkyard.store.projections import fold

SOURCE = Path(__file__).parents[2] / "src"

_WRITER = """
import asyncio, os, sys
from pathlib import Path
from forkyard.base.clock import SystemClock
from forkyard.model.ids import new_template_id
from forkyard.model.workspace import Template, TemplateSpec, TemplateState
from forkyard.store.journal import Journal

async def write(journal, worker):
    number = 0
    while True:
        name = f"{os.getpid()}-{worker}-{number}"
        template = Template(id=new_template_id(), name=name, spec=TemplateSpec(),
                            state=TemplateState.APPLIED, created_at="now")
        await journal.append(template, expect=None)
        os.write(1, f"{name}\\n".encode())
        number += 1

async def main():
    journal = Journal.open(Path(sys.argv[1]), SystemClock(), allow_volatile=True)
    async with asyncio.TaskGroup() as group:
        for worker in range(8):
            group.create_task(write(journal, worker))

asyncio.run(main())
"""

_FULL_DISK = """
import asyncio, os, sys
from pathlib import Path
from forkyard.base.clock import SystemClock
from forkyard.errors import StoreError
from forkyard.model.ids import new_template_id
from forkyard.model.workspace import Template, TemplateSpec, TemplateState
from forkyard.shim import kernel
from forkyard.store.blobs import Blobs
from forkyard.store.journal import Journal

place = Path(sys.argv[1])
kernel.unshare(kernel.CLONE_NEWNS)
kernel.mount("none", "/", "none", kernel.MS_REC | kernel.MS_PRIVATE)
kernel.mount("tiny", str(place), "tmpfs", 0, "size=16m")

def template(size):
    return Template(id=new_template_id(), name="x" * size, spec=TemplateSpec(),
                    state=TemplateState.APPLIED, created_at="now")

async def main():
    journal = Journal.open(place / "state.db", SystemClock(), allow_volatile=True)
    blobs = Blobs(place / "blobs")
    small = template(10)
    await journal.append(small, expect=None)
    ballast = place / "ballast"
    ballast.write_bytes(bytes(6 * 1024 * 1024))
    kept = 1
    try:
        while True:
            await journal.append(template(200_000), expect=None)
            kept += 1
    except StoreError as error:
        print("refused:", error.message, "|", error.hint)
    assert len(journal.state.templates) == kept, "a refused append must not show"
    try:
        blobs.put(os.urandom(16 * 1024 * 1024))
    except StoreError as error:
        print("blob:", error.message.split(":")[1].strip())
    assert not [path for path in (place / "blobs").rglob("*") if path.is_file()]
    ballast.unlink()
    await journal.append(template(10), expect=None)
    journal.close()
    again = Journal.open(place / "state.db", SystemClock(), allow_volatile=True)
    print("kept:", len(again.state.templates) == kept + 1)
    again.close()

asyncio.run(main())
"""


def _child(script: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", script, *arguments],
        env={"PYTHONPATH": str(SOURCE), "PATH": os.environ["PATH"]},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _killed_after(database: Path, seconds: float) -> list[str]:
    """Let a writer work for a while, kill it, and give what was acknowledged."""
    child = _child(_WRITER, str(database))
    assert child.stdout is not None
    first = child.stdout.readline()
    if not first:
        _, trouble = child.communicate()
        pytest.fail(f"the writer ended by itself: {trouble}")
    time.sleep(seconds)
    child.send_signal(signal.SIGKILL)
    rest, _ = child.communicate()
    # a line that was cut by the kill is no acknowledgement
    return [first.strip(), *rest.rpartition("\n")[0].split()]


def _assert_all_there(database: Path, acknowledged: set[str], epoch: int) -> None:
    journal = Journal.open(database, SystemClock(), allow_volatile=True)
    try:
        names = {template.name for template in journal.state.templates.values()}
        assert acknowledged <= names
        events = journal.events_after(0, limit=10_000_000)
        assert [event.sequence for event in events] == list(range(1, len(events) + 1))
        assert fold(event.entity for event in events) == journal.state
        assert journal.epoch == epoch
    finally:
        journal.close()


@pytest.mark.parametrize(
    "rounds", [5, pytest.param(60, marks=pytest.mark.deep)], ids=["short", "deep"]
)
def test_no_acknowledged_event_is_lost_when_writer_is_killed(tmp_path: Path, rounds: int) -> None:
    """SIGKILL at random moments, the same file again and again."""
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")  # noqa: T201 - shown when it fails
    chance = random.Random(seed)  # noqa: S311 - moments, not secrets
    database = tmp_path / "state.db"
    acknowledged: set[str] = set()
    for number in range(rounds):
        acknowledged.update(_killed_after(database, chance.uniform(0.0, 0.3)))
        _assert_all_there(database, acknowledged, epoch=2 * (number + 1))
    assert len(acknowledged) > rounds


def test_journal_goes_on_when_full_disk_has_room_again(tmp_path: Path) -> None:
    """What did not fit is refused with a next step; nothing else is lost, nothing half written."""
    child = _child(_FULL_DISK, str(tmp_path))
    told, trouble = child.communicate(timeout=60)
    assert child.returncode == 0, trouble
    assert "refused: cannot write the journal: the disk is full | Free space" in told
    assert "blob: No space left on device" in told
    assert "kept: True" in told


def test_memory_is_refused_as_a_place_when_not_allowed() -> None:
    """A tmpfs would lose the journal at the next boot."""
    place = Path("/dev/shm") / f"forkyard-test-{os.getpid()}"
    place.mkdir()
    try:
        with pytest.raises(StoreError, match="lies on tmpfs"):
            Journal.open(place / "state.db", SystemClock())
        assert not (place / "state.db").exists()
    finally:
        for path in place.iterdir():
            path.unlink()
        place.rmdir()


_ON_OVERLAY = """
import sys
from pathlib import Path
from forkyard.base.clock import SystemClock
from forkyard.errors import StoreError
from forkyard.shim import kernel
from forkyard.store.journal import Journal
root = Path(sys.argv[1])
kernel.unshare(kernel.CLONE_NEWNS)
kernel.mount("none", "/", "none", kernel.MS_REC | kernel.MS_PRIVATE)
kernel.mount("overlay", str(root / "merged"), "overlay", 0,
             f"lowerdir={root}/lower,upperdir={root}/upper,workdir={root}/work")
try:
    Journal.open(root / "merged" / "state.db", SystemClock(), allow_volatile=True)
except StoreError as error:
    print(error.message)
"""


def test_overlay_is_refused_as_a_place(tmp_path: Path) -> None:
    """A copy-up under an open database would split it in two."""
    for name in ("lower", "upper", "work", "merged"):
        (tmp_path / name).mkdir()
    told, trouble = _child(_ON_OVERLAY, str(tmp_path)).communicate(timeout=60)
    assert "lies on overlay" in told, trouble


def test_lock_is_free_when_its_holder_was_killed(tmp_path: Path) -> None:
    """The kernel lets go of it; no stale file keeps the next server out."""
    database = tmp_path / "state.db"
    child = _child(_WRITER, str(database))
    try:
        assert child.stdout is not None
        child.stdout.readline()
        with pytest.raises(StoreError, match=f"held by process {child.pid}"):
            Journal.open(database, SystemClock(), allow_volatile=True)
    finally:
        child.kill()
        child.communicate()

    async def story() -> None:
        journal = Journal.open(database, SystemClock(), allow_volatile=True)
        with contextlib.closing(journal):
            assert journal.state.templates

    asyncio.run(story())
