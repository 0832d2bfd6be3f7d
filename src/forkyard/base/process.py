"""The only place, beside the shim, that starts processes.

Every command is an argument list with an explicit environment and a closed standard input, in a
session of its own; its output is drained to a stated limit; at its time limit, or when the
caller is cancelled, the whole group gets TERM, a grace, then KILL.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from forkyard.errors import WorkspaceError

TERM_GRACE_SECONDS = 2.0
"""A trusted tool that ignores TERM this long is stuck; nothing of it is worth waiting for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """How a command ended and what it printed."""

    argv: tuple[str | bytes, ...]
    exit_code: int
    """Negative: ended by that signal."""
    stdout: bytes
    stderr: bytes

    @property
    def succeeded(self) -> bool:
        """Whether it exited 0."""
        return self.exit_code == 0


def run(
    argv: Sequence[str | bytes],
    *,
    variables: Mapping[str, str],
    stdin: bytes = b"",
    directory: str = "/",
    timeout_seconds: float = 60.0,
    pass_descriptors: Sequence[int] = (),
) -> Finished:
    """Run one trusted tool to its end.

    Args:
        argv: Program (absolute, or found in the given PATH) and arguments.
        variables: The whole environment; nothing is inherited.
        stdin: Bytes to feed; by default end of file at once.
        directory: Working directory.
        timeout_seconds: After this the process group is killed.
        pass_descriptors: Descriptors to keep open in the child.

    Returns:
        Exit status and output, also when it failed.

    Raises:
        WorkspaceError: It could not be started, or ran past its time limit.
    """
    try:
        child = subprocess.Popen(
            list(argv),
            env=dict(variables),
            cwd=directory,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            pass_fds=tuple(pass_descriptors),
        )
    except OSError as error:
        msg = f"cannot run {_name(argv)}: {error.strerror or error}"
        raise WorkspaceError(msg, hint="Run `forkyard doctor` to see what is missing.") from error
    try:
        stdout, stderr = child.communicate(stdin, timeout=timeout_seconds)
    except subprocess.TimeoutExpired as error:
        _end_group(child)
        msg = f"cannot finish {_name(argv)}: still running after {timeout_seconds:g} s"
        raise WorkspaceError(
            msg, hint="Look at the machine's load and disk, then retry."
        ) from error
    except BaseException:
        _end_group(child)
        raise
    return Finished(argv=tuple(argv), exit_code=child.returncode, stdout=stdout, stderr=stderr)


async def run_async(
    argv: Sequence[str | bytes],
    *,
    variables: Mapping[str, str],
    stdin: bytes = b"",
    directory: str = "/",
    timeout_seconds: float = 60.0,
    pass_descriptors: Sequence[int] = (),
    stdin_from: int | None = None,
    stdout_to: int | None = None,
) -> Finished:
    """Do the same as `run` without blocking the event loop.

    A file's descriptor in `stdin_from` or `stdout_to` takes the place of the bytes in memory,
    for what may be large.

    Cancellation:
        The process group is killed before the cancellation goes on.
    """
    creation = asyncio.ensure_future(
        asyncio.create_subprocess_exec(
            *argv,
            env=dict(variables),
            cwd=directory,
            stdin=asyncio.subprocess.PIPE if stdin_from is None else stdin_from,
            stdout=asyncio.subprocess.PIPE if stdout_to is None else stdout_to,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
            pass_fds=tuple(pass_descriptors),
        )
    )
    try:
        # Cancelled in the midst of its creation a process would go on, and leave its pipes open.
        child = await asyncio.shield(creation)
    except asyncio.CancelledError:
        await _end(await creation)
        raise
    except OSError as error:
        msg = f"cannot run {_name(argv)}: {error.strerror or error}"
        raise WorkspaceError(msg, hint="Run `forkyard doctor` to see what is missing.") from error
    try:
        async with asyncio.timeout(timeout_seconds):
            stdout, stderr = await child.communicate(stdin if stdin_from is None else None)
    except BaseException as error:
        await _end(child)
        if isinstance(error, TimeoutError):
            msg = f"cannot finish {_name(argv)}: still running after {timeout_seconds:g} s"
            raise WorkspaceError(
                msg, hint="Look at the machine's load and disk, then retry."
            ) from error
        raise
    return Finished(
        argv=tuple(argv), exit_code=child.returncode or 0, stdout=stdout or b"", stderr=stderr
    )


async def _end(child: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    await child.wait()


def start_detached(
    argv: Sequence[str], *, variables: Mapping[str, str], log: str, directory: str = "/"
) -> int:
    """Start a process that outlives this one, in its own session, printing to a log file.

    Returns:
        Its process id.
    """
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        child = subprocess.Popen(
            list(argv),
            env=dict(variables),
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=descriptor,
            stderr=descriptor,
            start_new_session=True,
        )
    finally:
        os.close(descriptor)
    child.returncode = 0  # not ours to reap: it goes on after we are gone
    return child.pid


def _end_group(child: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGTERM)
    try:
        child.wait(TERM_GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()


def _name(argv: Sequence[str | bytes]) -> str:
    return os.fsdecode(argv[0])
