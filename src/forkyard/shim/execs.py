"""One exec as its shim sees it: output into files, limits, and how it ended."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import signal
import time
from collections.abc import Callable

from forkyard.shim import kernel
from forkyard.shim.cgroups import SandboxGroup
from forkyard.shim.marks import MarkedProcesses
from forkyard.shim.orders import Command, command_of
from forkyard.shim.protocol import Message
from forkyard.shim.records import EXIT_RECORD, STDERR, STDOUT, write_record
from forkyard.shim.spawner import Held, Refusal, Spawner

CHUNK_BYTES = 256 * 1024
DESK = ".next"
_F_SETPIPE_SZ, _WIDE_BYTES = 1031, 1 << 20
_NOT_EXECUTABLE, _NOT_FOUND = 126, 127


class Stream:
    """One output stream: a pipe from the command, a file that keeps it up to a limit."""

    def __init__(self, directory: int, name: str) -> None:
        """Make pipe and file."""
        self.read_end, self.write_end = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self.read_end, False)
        self._file = os.open(
            name,
            os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC,
            0o600,
            dir_fd=directory,
        )
        self.limit_bytes = 0
        """What the file keeps; the rest is counted and dropped."""
        self.seen_bytes = 0
        self.kept_bytes = 0
        self.open = True
        self.is_watched = False
        """Whether the event loop looks at its reading end."""
        self.tap: Callable[[bytes], None] | None = None
        """Who is attached, and gets all of it."""

    def started(self) -> None:
        """The command has its end now."""
        os.close(self.write_end)

    def become_terminal(self, master: int) -> None:
        """Read from a terminal instead of the pipe."""
        os.dup2(master, self.read_end, inheritable=False)
        os.close(master)
        os.set_blocking(self.read_end, False)

    def drain(self, *, once: bool = False) -> bool:
        """Move what is there into the file; False at the end of the stream."""
        while self.open:
            try:
                chunk = os.read(self.read_end, CHUNK_BYTES)
            except BlockingIOError:
                return True
            except OSError as error:
                if error.errno != errno.EIO:
                    raise
                chunk = b""  # a terminal that nobody has open any more
            if not chunk:
                self.close()
                return False
            self.seen_bytes += len(chunk)
            if self.tap is not None:
                self.tap(chunk)
            self._keep(chunk[: max(0, self.limit_bytes - self.kept_bytes)])
            if once:
                return True
        return False

    def _keep(self, room: bytes) -> None:
        while room:
            try:
                written = os.write(self._file, room)
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                    raise
                # A full disk must not hang the command on its pipe: count and drop.
                break
            self.kept_bytes += written
            room = room[written:]

    def close(self) -> None:
        """Let go of pipe and file. Idempotent."""
        if self.open:
            self.open = False
            os.close(self.read_end)
            os.close(self._file)

    @property
    def truncated(self) -> bool:
        """Whether something was dropped."""
        return self.seen_bytes > self.kept_bytes


class Input:
    """A command's input: what waits for it, and our end of its pipe or terminal."""

    def __init__(self, descriptor: int) -> None:
        """Take the descriptor over."""
        os.set_blocking(descriptor, False)
        self.descriptor = descriptor
        """-1 once it is closed."""
        self.waiting = bytearray()
        self.is_ended = False

    def pour(self) -> bool:
        """Give the command what it takes; True where it would have to wait for the rest."""
        while self.waiting and self.descriptor >= 0:
            try:
                written = os.write(self.descriptor, memoryview(self.waiting)[:CHUNK_BYTES])
            except BlockingIOError:
                return True
            except OSError:
                self.close()  # it reads no more: the rest is nobody's
            else:
                del self.waiting[:written]
        if self.is_ended:
            self.close()
        return False

    def close(self) -> None:
        """Let the command read its end. Idempotent."""
        self.waiting.clear()
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


class Desk:
    """Where the next command's output will go: a folder with its files and pipes, made ahead."""

    def __init__(self, folder: int) -> None:
        """Make it below the workspace's folder of execs; an earlier one's remains are used."""
        self._folder = folder
        with contextlib.suppress(FileExistsError):
            os.mkdir(DESK, 0o700, dir_fd=folder)
        self.directory = os.open(DESK, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder)
        streams: list[Stream] = []
        try:
            streams = [Stream(self.directory, name) for name in (STDOUT, STDERR)]
        except OSError:
            for stream in streams:
                stream.started()
                stream.close()
            os.close(self.directory)
            raise
        self.stdout, self.stderr = streams
        self.null = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)

    @property
    def streams(self) -> tuple[int, int, int]:
        """What a command that reads nothing gets as its 0, 1 and 2."""
        return self.null, self.stdout.write_end, self.stderr.write_end

    def assign(self, name: str, output_bytes: int) -> None:
        """Give it to an exec of that name.

        Raises:
            FileExistsError: There was one of that name.
        """
        kernel.rename(
            self._folder, DESK.encode(), self._folder, name.encode(), kernel.RENAME_NOREPLACE
        )
        self.stdout.limit_bytes = self.stderr.limit_bytes = output_bytes


class RunningExec:
    """One command from its start to its record."""

    def __init__(
        self,
        spec: Message,
        *,
        desk: Desk,
        group: SandboxGroup | MarkedProcesses,
        spawner: Spawner,
        capabilities: int = 0,
        held: Held | None = None,
    ) -> None:
        """Start the command, which may be held; `pid` is None where it could not be."""
        self.id: str = spec["id"]
        self.keep_background: bool = spec["keep_background"]
        self.grace_seconds: float = spec["grace_seconds"]
        self._directory = desk.directory
        self._group = group
        self._memory_kills = group.known_memory_kills
        self._file_bytes: int | None = spec.get("file_bytes")
        self._started = time.monotonic()
        timeout = spec["timeout_seconds"]
        self.timeout_seconds: float | None = timeout
        self.deadline = None if timeout is None else self._started + timeout
        self.kill_at: float | None = None
        self.reason: str | None = None
        self.detail: str | None = None
        self.status: int | None = None
        self.result: Message | None = None
        self._is_kept = False
        self.stdout, self.stderr = desk.stdout, desk.stderr
        terminal = spec.get("terminal")
        self.is_terminal = terminal is not None
        self.is_attended: bool = self.is_terminal or spec.get("attended", False)
        """Whether somebody is on their way who wants its output from the first byte on."""
        self.input: Input | None = None
        if self.is_attended and not self.is_terminal:
            _widen(self.stdout.read_end)
        command = command_of(spec, capabilities)
        source = desk.null
        if spec.get("has_input", False) and not self.is_terminal:
            os.close(desk.null)
            source, ours = os.pipe2(os.O_CLOEXEC)
            _widen(ours)
            self.input = Input(ours)
        streams = (source, self.stdout.write_end, self.stderr.write_end)
        if held is None:
            outcome = spawner.spawn(command, streams)
        else:
            outcome = spawner.release(held, command, streams)
        os.close(source)
        self.stdout.started()
        self.stderr.started()
        self.pid: int | None = None
        self._group_name: str | None = None
        if isinstance(outcome, Refusal):
            self._refused(command, outcome)
        else:
            self.pid, self._group_name, master = outcome
            if master is not None:
                self.stdout.become_terminal(master)
                self.input = Input(os.dup(self.stdout.read_end))

    def _refused(self, command: Command, refusal: Refusal) -> None:
        words = os.strerror(refusal.number).lower()
        if refusal.stage == "execute":
            found = refusal.number not in (errno.ENOENT, errno.ENOTDIR)
            self.status = _NOT_EXECUTABLE if found else _NOT_FOUND
            self.end("could-not-start", f"cannot execute {command.argv[0]}: {words}")
        elif refusal.stage == "directory":
            self.status = _NOT_EXECUTABLE
            self.end("could-not-start", f"working directory {command.directory}: {words}")
        else:
            self.end("interrupted", f"cannot join the sandbox: {words}")

    def end(self, reason: str, detail: str | None = None) -> None:
        """Say why it ends, unless that is settled."""
        if self.reason is None:
            self.reason, self.detail = reason, detail

    def ask_to_end(self, reason: str, detail: str | None, grace_seconds: float) -> None:
        """TERM now, KILL after the grace; both to everything the command left."""
        if self.result is not None or self.kill_at is not None:
            return
        self.end(reason, detail)
        self.kill_at = time.monotonic() + grace_seconds
        if grace_seconds > 0 and self._group_name is not None:
            self._group.signal(self._group_name, signal.SIGTERM)

    def hang_up(self) -> None:
        """Take its terminal away, as closing a window does: what is in it gets SIGHUP."""
        if self.is_terminal:
            if self.input is not None:
                self.input.close()
            self.stdout.close()

    def exited(self, status: int) -> None:
        """Take the command's wait status."""
        code = os.waitstatus_to_exitcode(status)
        self.status = code if code >= 0 else 128 - code
        if code == -signal.SIGKILL and self._group.memory_kills() > self._memory_kills:
            self.end("memory-limit", "the workspace's memory limit was reached")
        elif code == -signal.SIGXFSZ and self._file_bytes is not None:
            self.end("disk-limit", f"a file reached the disk limit of {self._file_bytes} bytes")
        self.end("exited")
        if not self.keep_background or self.kill_at is not None:
            self._kill()

    def _kill(self) -> None:
        if self._group_name is not None:
            self._group.kill(self._group_name)

    def tick(self, now: float) -> None:
        """Enforce time limits."""
        if self.result is not None:
            return
        if self.deadline is not None and now >= self.deadline and self.kill_at is None:
            self.ask_to_end(
                "timed-out", f"still running after {self.timeout_seconds:g} s", self.grace_seconds
            )
        if self.kill_at is not None and now >= self.kill_at:
            self._kill()

    def put_off(self, seconds: float) -> None:
        """Move its time limits, which did not run for so long."""
        self.deadline = None if self.deadline is None else self.deadline + seconds
        self.kill_at = None if self.kill_at is None else self.kill_at + seconds

    def next_tick(self) -> float | None:
        """When `tick` has something to do next, in monotonic seconds."""
        if self.result is not None:
            return None
        return self.kill_at if self.kill_at is not None else self.deadline

    def finish(self) -> bool:
        """Sum it up if all is over; True once it is."""
        if self.result is not None:
            return True
        started = self.pid is not None
        if started and self.status is None:
            return False
        ends_all = not self.keep_background or self.kill_at is not None
        if self._group_name is not None and ends_all and self._group.processes(self._group_name):
            self._kill()
            return False
        for stream in (self.stdout, self.stderr):
            with contextlib.suppress(OSError):
                stream.drain()
        if self.input is not None:
            self.input.close()
        self._tell_memory_kills()
        self.result = {
            "id": self.id,
            "stop_reason": self.reason or "exited",
            "exit_code": self.status,
            "elapsed_seconds": round(time.monotonic() - self._started, 6),
            "stdout_bytes": self.stdout.kept_bytes,
            "stderr_bytes": self.stderr.kept_bytes,
            "truncated": self.stdout.truncated or self.stderr.truncated,
            "detail": self.detail,
        }
        return True

    def _tell_memory_kills(self) -> None:
        """Say that the memory limit struck also where the command itself went on, or ended so."""
        kills = self._group.memory_kills() - self._memory_kills
        if kills > 0 and self.reason != "memory-limit":
            words = "a process" if kills == 1 else f"{kills} processes"
            told = f"the workspace's memory limit was reached while it ran: {words} killed"
            self.detail = told if self.detail is None else f"{self.detail}; {told}"

    def keep(self) -> None:
        """Write the record of an exec that is over, and let go of what it held. Idempotent."""
        if self.result is None or self._is_kept:
            return
        self._is_kept = True
        # On a full disk there is no record; whoever waits is told all the same.
        with contextlib.suppress(OSError):
            write_record(self._directory, EXIT_RECORD, self.result)
        os.close(self._directory)
        if self._group_name is None or self._group.remove_exec(self._group_name):
            self.stdout.close()
            self.stderr.close()

    def lose(self, detail: str) -> None:
        """The sandbox is gone under it: record that, with what output there is."""
        self.end("interrupted", detail)
        if self.pid is not None and self.status is None:
            self.pid = None
        self.finish()


def _widen(pipe: int) -> None:
    """Let more wait in a pipe that may carry much; the usual fill does where that is refused."""
    with contextlib.suppress(OSError):
        fcntl.fcntl(pipe, _F_SETPIPE_SZ, _WIDE_BYTES)


def lost_result(name: str, detail: str) -> Message:
    """Give the end of an exec that was never begun here."""
    return {
        "id": name,
        "stop_reason": "interrupted",
        "exit_code": None,
        "elapsed_seconds": 0.0,
        "stdout_bytes": 0,
        "stderr_bytes": 0,
        "truncated": False,
        "detail": detail,
    }
