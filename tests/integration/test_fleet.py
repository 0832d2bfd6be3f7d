"""The local fleet with the real kernel: execs, time limits, limits, death of each process."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import signal
from pathlib import Path

from forkyard.config import Layout
from forkyard.model.execution import ExecSpec, StopReason
from forkyard.model.ids import new_exec_id
from forkyard.model.workspace import Limits
from forkyard.shim import cgroups
from forkyard.shim.hierarchies import ROOT, detect, open_roots
from forkyard.shim.ids import IDS
from forkyard.shim.main import PID_FILE
from forkyard.workspace.fleet import LocalFleet
from sandboxes import Box, describe, in_box, make_layer, open_fleet

STUBBORN = "trap '' TERM; (setsid sh -c 'trap \"\" TERM; sleep 987654') & sleep 987654"


def _alive(marker: str) -> list[str]:
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            words = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if entry.name.isdigit() and marker in words and int(entry.name) != os.getpid():
                found.append(words)
    return found


async def _until_alive(marker: str) -> None:
    for _ in range(1000):
        if _alive(marker):
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"{marker} never started")


async def _until_gone(marker: str) -> list[str]:
    for _ in range(400):
        if not _alive(marker):
            return []
        await asyncio.sleep(0.005)
    return _alive(marker)


def _groups(box: Box) -> list[str]:
    hierarchies = detect()
    if hierarchies is None:
        assert IDS.is_rootless
        return []
    return [name for name in cgroups.existing(hierarchies) if name.startswith(box.id)]


def test_exec_tells_status_and_output_when_command_ends(home: Path) -> None:
    """Exit status, both streams and the working directory are the command's own."""

    async def body(box: Box) -> None:
        output = await box.sh("pwd; cat file; echo trouble >&2; exit 7")

        assert output.result.stop_reason is StopReason.EXITED
        assert output.result.exit_code == 7
        assert output.stdout == "/workspace/repo\ncontent"
        assert output.stderr == "trouble\n"

    in_box(home, body, files={"file": "content"})


def test_exec_ends_at_once_when_it_reads_its_input(home: Path) -> None:
    """Standard input is at its end: no command waits for a person that is not there."""

    async def body(box: Box) -> None:
        output = await box.sh("cat; python3 -c 'import sys; print(repr(sys.stdin.read()))'")

        assert output.stdout == "''\n"

    in_box(home, body)


def test_same_exec_runs_once_when_asked_twice(home: Path) -> None:
    """An exec id is an idempotency key, while it runs and after it ended."""

    async def body(box: Box) -> None:
        spec = box.command("echo once >> log; sleep 0.2; cat log")

        first, second = await asyncio.gather(box.run(spec), box.run(spec))
        third = await box.run(spec)

        assert first.stdout == second.stdout == third.stdout == "once\n"
        assert first.result == second.result == third.result

    in_box(home, body)


def test_nothing_survives_when_exec_times_out(home: Path) -> None:
    """A time limit reaches children that left the session and ignore TERM; output is kept."""

    async def body(box: Box) -> None:
        command = box.command(f"echo before; {STUBBORN}", timeout_seconds=0.4, grace_seconds=0.3)
        output = await box.run(command)

        assert output.result.stop_reason is StopReason.TIMED_OUT
        assert output.result.detail == "still running after 0.4 s"
        assert output.stdout == "before\n"
        assert await _until_gone("987654") == []

    in_box(home, body)


def test_nothing_survives_when_exec_is_killed(home: Path) -> None:
    """Cancelling ends what TERM cannot, and says that it was asked for."""

    async def body(box: Box) -> None:
        command = box.command(STUBBORN, timeout_seconds=None)
        running = asyncio.create_task(box.run(command))
        await _until_alive("987654")
        await box.fleet.kill_exec(box.id, command.id, epoch=1, grace_seconds=0.2)
        output = await running

        assert output.result.stop_reason is StopReason.KILLED
        assert await _until_gone("987654") == []

    in_box(home, body)


def test_background_is_ended_when_exec_keeps_none(home: Path) -> None:
    """An agent's exec is over with its command: what it left running is killed."""

    async def body(box: Box) -> None:
        command = box.command("setsid sleep 876543 & echo done", keep_background=False)
        output = await box.run(command)

        assert output.result.stop_reason is StopReason.EXITED
        assert output.result.exit_code == 0
        assert await _until_gone("876543") == []

    in_box(home, body)


def test_background_goes_on_when_exec_keeps_it(home: Path) -> None:
    """A person's exec may start a server and return."""

    async def body(box: Box) -> None:
        await box.sh("python3 -m http.server 8000 --bind 127.0.0.1 >/dev/null 2>&1 &")
        output = await box.sh(
            'for i in $(seq 100); do python3 -c "import socket;'
            "socket.create_connection(('127.0.0.1', 8000))\" 2>/dev/null && echo up && exit;"
            " sleep 0.1; done"
        )

        assert output.stdout == "up\n"

    in_box(home, body)


def test_command_that_is_absent_is_told_apart_when_it_cannot_start(home: Path) -> None:
    """Not found, not executable and no such directory are the command's fault, with words."""

    async def body(box: Box) -> None:
        spec = box.command("")
        missing = await box.run(_with(spec, argv=("nonesuch",)))
        forbidden = await box.run(_with(spec, argv=("./plain",)))
        nowhere = await box.run(_with(spec, working_directory="/nowhere"))

        outcomes = [
            (one.result.stop_reason.value, one.result.exit_code, one.result.detail)
            for one in (missing, forbidden, nowhere)
        ]
        assert outcomes == [
            ("could-not-start", 127, "cannot execute nonesuch: no such file or directory"),
            ("could-not-start", 126, "cannot execute ./plain: permission denied"),
            ("could-not-start", 126, "working directory /nowhere: no such file or directory"),
        ]

    in_box(home, body, files={"plain": "echo"})


def _with(
    spec: ExecSpec, *, argv: tuple[str, ...] | None = None, working_directory: str | None = None
) -> ExecSpec:
    return dataclasses.replace(
        spec,
        id=new_exec_id(),
        argv=argv or spec.argv,
        working_directory=working_directory or spec.working_directory,
    )


def test_memory_limit_is_named_when_it_strikes(home: Path) -> None:
    """A command killed by the memory limit says so, and the next one works."""

    async def body(box: Box) -> None:
        hog = await box.sh("exec python3 -c 'x = bytearray(300 << 20)'")
        after = await box.sh("echo fine")

        if detect() is None:  # a single process meets what stands in for the limit
            assert "MemoryError" in hog.stderr
        else:
            assert hog.result.stop_reason is StopReason.MEMORY
            assert hog.result.exit_code == 137
        assert after.stdout == "fine\n"

    in_box(home, body, limits=Limits(memory_bytes=100 << 20))


def test_process_limit_holds_when_a_command_forks_without_end(home: Path) -> None:
    """A fork loop meets the limit, is ended whole, and the sandbox stays usable."""

    async def body(box: Box) -> None:
        bomb = box.command(
            "python3 -c 'import os, time\nn = 0\ntry:\n  while True:\n"
            "    if os.fork() == 0: time.sleep(1000)\n    n += 1\n"
            "except OSError as e: print(n, e.errno)'",
            keep_background=False,
        )
        output = await box.run(bomb)
        after = await box.sh("echo fine")

        forks, number = map(int, output.stdout.split())
        assert 20 < forks < 64
        assert number == 11
        assert after.stdout == "fine\n"

    in_box(home, body, limits=Limits(processes=64))


def test_cpu_limit_holds_when_a_command_computes_without_end(home: Path) -> None:
    """It gets its share of one processor and no more, and sees one, however idle the machine is."""
    script = (
        "import time\nbegin, used = time.monotonic(), time.process_time()\n"
        "while (passed := time.monotonic() - begin) < 1: pass\n"
        "print((time.process_time() - used) / passed)"
    )

    async def body(box: Box) -> None:
        output = await box.sh(f"nproc; python3 -c '{script}'")

        processors, share = output.stdout.split()
        # Without a controller nothing holds it, and doctor says so.
        if detect() is not None:
            assert processors == "1"
            assert float(share) < 0.2

    in_box(home, body, limits=Limits(cpu_millicores=100))


def test_disk_watch_ends_exec_when_workspace_grows_past_its_limit(home: Path) -> None:
    """Many small files pass the watch's limit; one large file fails by itself."""

    async def body(box: Box) -> None:
        large = await box.sh("head -c 40000000 /dev/zero > large; echo $?")
        many = await box.sh("i=0; while :; do i=$((i+1)); head -c 1000000 /dev/zero > f$i; done")

        assert large.stdout.strip() != "0"
        assert many.result.stop_reason is StopReason.DISK
        assert "bytes are allowed" not in many.stdout
        assert "20000000 are allowed" in (many.result.detail or "")

    in_box(home, body, limits=Limits(disk_bytes=20_000_000))


def test_output_past_its_limit_is_dropped_and_counted(home: Path) -> None:
    """A flood ends bounded: what is kept is the beginning, and the result says truncated."""

    async def body(box: Box) -> None:
        command = box.command("yes | head -c 5000000", output_bytes=100_000)
        output = await box.run(command)

        assert output.result.exit_code == 0
        assert output.result.truncated
        assert output.result.stdout_bytes == 100_000
        assert output.stdout == "y\n" * 50_000

    in_box(home, body)


def test_orphans_are_reaped_when_their_parents_go(home: Path) -> None:
    """Process 1 reaps: thousands of orphans leave no zombie behind."""

    async def body(box: Box) -> None:
        await box.sh("i=0; while [ $i -lt 2000 ]; do (true &) ; i=$((i+1)); done")
        output = await box.sh("grep -l '^State:.Z' /proc/[0-9]*/status 2>/dev/null | wc -l")

        assert int(output.stdout) < 5

    in_box(home, body)


def test_shim_holds_nothing_open_for_commands_that_are_over(home: Path) -> None:
    """A workspace that lives long runs thousands of commands."""

    async def body(box: Box) -> None:
        shim = int((box.layout.sandbox(box.id) / PID_FILE).read_text())

        async def held() -> int:
            await box.sh("true")
            seen: list[int] = []
            # What the next command needs is made ahead a moment after this one's end.
            while len(seen) < 10 or len(set(seen[-10:])) > 1:
                seen.append(len(list(Path(f"/proc/{shim}/fd").iterdir())))
                await asyncio.sleep(0.01)
            return seen[-1]

        before = await held()
        after = [await held() for _ in range(20)][-1]

        assert after <= before + 2

    in_box(home, body)


def test_nothing_is_left_when_sandbox_stops(home: Path) -> None:
    """Processes, mounts, cgroups and the socket go with the sandbox; stopping twice is fine."""

    async def body(box: Box) -> None:
        await box.sh("setsid sleep 765432 & echo x > written")
        await box.fleet.stop(box.id, epoch=1)
        await box.fleet.stop(box.id, epoch=1)

        assert await _until_gone("765432") == []
        assert _groups(box) == []
        assert await box.fleet.running() == ()
        assert (box.layout.upper(box.id) / "workspace/repo/written").read_text() == "x\n"

    in_box(home, body)


def test_server_attaches_again_when_it_comes_back(home: Path) -> None:
    """Another fleet object finds the sandbox, its running exec, and waits for the same end."""

    async def body(box: Box) -> None:
        command = box.command("sleep 0.5; echo still here")
        first = asyncio.create_task(box.run(command))
        await asyncio.sleep(0.2)
        first.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await first
        await box.fleet.close()
        other = LocalFleet(Layout(home))
        found = await other.running()
        output = await Box(other, box.layout, box.spec).run(command)
        await other.stop(box.id, epoch=1)
        await other.close()

        assert [one.workspace for one in found] == [box.id]
        assert output.stdout == "still here\n"

    in_box(home, body)


def test_all_is_gone_when_the_shim_is_killed(home: Path) -> None:
    """SIGKILL of a shim takes its processes and mounts along; the exec counts as interrupted."""

    async def body(box: Box) -> None:
        command = box.command("sleep 654321", timeout_seconds=None)
        running = asyncio.create_task(box.run(command))
        await _until_alive("654321")
        os.kill(int((box.layout.sandbox(box.id) / PID_FILE).read_text()), signal.SIGKILL)
        output = await running
        gone = await _until_gone("654321")
        await box.fleet.stop(box.id, epoch=1)

        assert output.result.stop_reason is StopReason.INTERRUPTED
        assert gone == []
        assert _groups(box) == []

    in_box(home, body)


def test_running_sandboxes_go_on_when_the_fork_server_is_killed(home: Path) -> None:
    """The fork-server's death stops nobody, and the next start makes a new one."""

    async def body() -> None:
        async with open_fleet(home) as (fleet, layout):
            layer = make_layer(layout, {})
            first, second = describe(layout, layer), describe(layout, layer, slot=1)
            await fleet.start(first)
            (pid,) = _pids(str(layout.fleet_socket))
            os.kill(pid, signal.SIGKILL)
            await fleet.start(second)
            outputs = [
                (await Box(fleet, layout, spec).sh("echo alive")).stdout for spec in (first, second)
            ]

            assert outputs == ["alive\n", "alive\n"]

    asyncio.run(body())


def _pids(marker: str) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            words = (entry / "environ").read_bytes().split(b"\0")
            if (
                f"FORKYARD_FLEET={marker}".encode() in words
                and b"Z" not in (entry / "stat").read_bytes()[:60]
            ):
                found.append(int(entry.name))
    # Shims and spawners are forks of it and look alike: the fork-server is the oldest.
    return sorted(found)[:1]


def test_siblings_do_not_meet_when_they_run_side_by_side(home: Path) -> None:
    """Two workspaces see neither each other's files, processes, ports nor shared memory."""

    async def body() -> None:
        async with open_fleet(home) as (fleet, layout):
            layer = make_layer(layout, {"shared": "base"})
            boxes = []
            for slot in range(2):
                spec = describe(layout, layer, slot=slot)
                await fleet.start(spec)
                boxes.append(Box(fleet, layout, spec))
            first, second = boxes
            await first.sh(
                "for file in shared /tmp/a /dev/shm/a; do echo SECRET_OF_A > $file; done;"
                " SECRET=SECRET_OF_A sleep 543210 & "
                "python3 -m http.server 8000 --bind 127.0.0.1 >/dev/null 2>&1 &"
            )
            look = await second.sh(
                "cat shared; ls /tmp /dev/shm; cat /proc/*/cmdline | tr '\\0' ' '; echo;"
                "grep -rl SECRET_OF_A /proc/*/environ /workspace /home /tmp /dev/shm 2>/dev/null;"
                "python3 -c 'import socket as s; print(s.socket().connect_ex((\"\", 8000)))'"
            )

            assert "SECRET" not in look.stdout.replace("grep -rl SECRET_OF_A", "")
            assert "543210" not in look.stdout
            assert look.stdout.startswith("base")
            assert look.stdout.rstrip().endswith("111")
            assert (layout.layer(layer) / "workspace/repo/shared").read_text() == "base"

    asyncio.run(body())


def test_every_sandbox_starts_when_many_are_asked_for_at_once(home: Path) -> None:
    """Thirty-two at once all start, run and go, and none is left behind."""

    async def body() -> None:
        async with open_fleet(home) as (fleet, layout):
            layer = make_layer(layout, {})
            specs = [describe(layout, layer, slot=slot) for slot in range(32)]

            async def one(box: Box) -> str:
                await fleet.start(box.spec)
                output = await box.sh("echo $$")
                await fleet.stop(box.id, epoch=1)
                return output.stdout

            answers = await asyncio.gather(*(one(Box(fleet, layout, spec)) for spec in specs))

            assert all(answer.strip().isdigit() for answer in answers)
            assert await fleet.running() == ()

    asyncio.run(body())


def test_groups_are_made_when_their_parent_was_taken_away_meanwhile(home: Path) -> None:
    """Installations share the parent, and the last one to go removes it."""

    async def body(box: Box) -> None:
        hierarchies = detect()
        if hierarchies is None:
            assert IDS.is_rootless, "there is no group to be made"
            return
        cgroups.remove_parent(hierarchies)
        assert _groups(box), "a parent in use stays"
        assert (await box.sh("echo on")).stdout == "on\n"
        parent = f"forkyard-test-{box.id}"
        before, cgroups.PARENT = cgroups.PARENT, parent
        roots = open_roots(hierarchies)
        try:
            group = Vanishing(hierarchies, roots, "x-1")
            group.create(cgroups.GroupLimits())
            assert group.vanished
            assert cgroups.existing(hierarchies) == ["x-1"]
            group.sweep()
            cgroups.remove_parent(hierarchies)
            assert not list(Path(ROOT).glob(f"*/{parent}"))
        finally:
            cgroups.PARENT = before
            for root in roots.values():
                os.close(root)

    in_box(home, body)


class Vanishing(cgroups.SandboxGroup):
    """Groups whose parent goes away once, just after it was made."""

    vanished = False

    def _make(self, root: int, path: str) -> None:
        super()._make(root, path)
        if not self.vanished and path == cgroups.PARENT:
            type(self).vanished = True
            os.rmdir(path, dir_fd=root)
