"""A person's terminal, lent to a workspace's: raw while that lasts, as it was whatever happens.

What an agent wrote reaches the terminal unescaped here, and only here: that is what was asked for.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
import sys
import termios
import threading
import tty
from collections.abc import AsyncIterator, Callable, Iterator
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    from forkyard.client.live import LiveExec

CHUNK_BYTES = 256 * 1024
ESCAPE = b"~."
"""After Enter, as in ssh: leave without ending what runs."""


class DetachedError(Exception):
    """The person left; what runs goes on."""


class HungUpError(Exception):
    """The terminal's window was closed, or somebody ended us."""


async def read_stream(descriptor: int) -> AsyncIterator[bytes]:
    """Give what comes from a descriptor of any kind, to its end.

    A thread reads: a descriptor shared with others must not be made non-blocking, and one that
    never gives anything must not keep us from leaving.
    """
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[bytes] = asyncio.Queue(4)

    def read() -> None:
        with contextlib.suppress(RuntimeError):  # the loop is gone, and with it whoever wants it
            while True:
                try:
                    chunk = os.read(descriptor, CHUNK_BYTES)
                except OSError:
                    chunk = b""
                asyncio.run_coroutine_threadsafe(queue.put(chunk), loop).result()
                if not chunk:
                    return

    threading.Thread(target=read, daemon=True, name="input").start()
    while chunk := await queue.get():
        yield chunk


class Escapes:
    """Finds the way out in what a person types."""

    def __init__(self) -> None:
        """Begin at the start of a line."""
        self._held = b""
        self._is_at_start = True

    def pass_on(self, typed: bytes) -> bytes:
        """Give what goes to the workspace.

        Raises:
            DetachedError: The person typed the way out.
        """
        given = b""
        for number in typed:
            one = bytes((number,))
            if self._held:
                if one == ESCAPE[1:]:
                    raise DetachedError
                given, self._held = given + (b"" if one == ESCAPE[:1] else self._held), b""
            elif self._is_at_start and one == ESCAPE[:1]:
                self._held = one
                continue
            given += one
            self._is_at_start = one in (b"\r", b"\n")
        return given


@contextlib.contextmanager
def raw(descriptor: int) -> Iterator[None]:
    """Make a terminal raw for a block; it is restored also where we are killed."""
    before = termios.tcgetattr(descriptor)
    with _guard(descriptor, before):
        try:
            tty.setraw(descriptor, termios.TCSADRAIN)
            yield
        finally:
            termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


@contextlib.contextmanager
def _guard(descriptor: int, before: list[int | list[bytes | int]]) -> Iterator[None]:
    """Have a child restore the terminal should we go without doing so."""
    watched, ours = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(ours)
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGTTOU):
                signal.signal(number, signal.SIG_IGN)
            for number in (signal.SIGTSTP, signal.SIGQUIT):
                signal.signal(number, signal.SIG_IGN)
            if os.read(watched, 1) == b"":  # nobody said that all is well
                termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
        finally:
            os._exit(0)
    os.close(watched)
    try:
        yield
    finally:
        os.write(ours, b".")
        os.close(ours)
        os.waitpid(child, 0)


def size_of(descriptor: int) -> tuple[int, int]:
    """Give a terminal's rows and columns."""
    columns, rows = os.get_terminal_size(descriptor)
    return max(1, rows), max(1, columns)


async def lend(one: LiveExec, descriptor: int, target: BinaryIO) -> None:
    """Pass keys in and the screen out until what runs is over.

    Raises:
        DetachedError: The person left.
        HungUpError: The terminal is gone or we were told to end; what runs is hung up.
        ForkyardError: The server went away.
    """
    lent = _Lent(one, descriptor)
    with lent.reacting():
        try:
            async with asyncio.TaskGroup() as group:
                typing = group.create_task(lent.type())
                async for _, chunk in one.output():
                    _show(chunk, target)
                typing.cancel()
        except asyncio.CancelledError:
            if not lent.is_hung_up:
                raise
            lent.task.uncancel()
            await asyncio.shield(one.hang_up())
            raise HungUpError from None
        except BaseExceptionGroup as group_error:
            raise group_error.exceptions[0] from None


class _Lent:
    """A terminal while it is lent, and how signals to us reach what runs."""

    def __init__(self, one: LiveExec, descriptor: int) -> None:
        self._one, self._descriptor = one, descriptor
        self._later: set[asyncio.Future[None]] = set()
        self.is_hung_up = False
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - a coroutine runs in a task
        self.task = task

    @contextlib.contextmanager
    def reacting(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        reactions: dict[int, Callable[[], None]] = {
            signal.SIGWINCH: self._resized,
            signal.SIGCONT: self._continued,
            signal.SIGHUP: self._hang_up,
            signal.SIGTERM: self._hang_up,
        }
        for number, reaction in reactions.items():
            loop.add_signal_handler(number, reaction)
        try:
            yield
        finally:
            for number in reactions:
                loop.remove_signal_handler(number)

    def _resized(self) -> None:
        with contextlib.suppress(OSError):
            task = asyncio.ensure_future(self._one.resize(*size_of(self._descriptor)))
            self._later.add(task)
            task.add_done_callback(self._later.discard)

    def _continued(self) -> None:
        tty.setraw(self._descriptor, termios.TCSADRAIN)
        self._resized()

    def _hang_up(self) -> None:
        self.is_hung_up = True
        self.task.cancel()

    async def type(self) -> None:
        escapes = Escapes()
        async for typed in read_stream(self._descriptor):
            passed = escapes.pass_on(typed)
            if passed:
                await self._one.write(passed)
        await self._one.hang_up()


def _show(chunk: bytes, target: BinaryIO) -> None:
    view = memoryview(chunk)
    while view:
        try:
            view = view[os.write(target.fileno(), view) :]
        except BlockingIOError:
            select.select([], [target], [])


def input_descriptor() -> int | None:
    """Give our standard input where it is a terminal and so is our output."""
    try:
        number = sys.stdin.fileno()
    except (OSError, ValueError):
        return None
    return number if os.isatty(number) and sys.stdout.isatty() else None
