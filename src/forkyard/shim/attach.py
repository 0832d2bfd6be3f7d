"""Somebody attached to an exec: its input comes from them, its output goes to them as well.

The connection carries frames both ways: one byte that says which, a length, the content. What is
read from the command goes into its files first, to their limit; all of it goes to whoever is
attached, and a reader that is slow makes the command wait, as a pipe would. When the connection
ends, the exec goes on: nobody's work ends with a network. Its input stays open then, since an
input cut short must not pass for a whole one; who attaches next goes on writing.
"""

from __future__ import annotations

import contextlib
import functools
import selectors
import socket
import time
from collections.abc import Callable

from forkyard.shim import protocol
from forkyard.shim.execs import RunningExec, Stream
from forkyard.shim.frames import (
    CELLS,
    END,
    ERROR_OUTPUT,
    HANG_UP,
    HEADER,
    INPUT,
    INPUT_END,
    LARGEST_BYTES,
    OUTPUT,
    SIZE,
    TAKEN_OVER,
    frame,
)
from forkyard.shim.terminal import END_OF_FILE, set_size

MOST_WAITING_BYTES = 1024**2
HELD_SECONDS = 10.0
"""How long the output of an exec that somebody wants to attach to waits for them."""
_FLUSH_SECONDS = 10.0
_CHUNK_BYTES = 256 * 1024


class Attachment:
    """One connection at one exec."""

    def __init__(self, connection: socket.socket, one: RunningExec, owner: Attachments) -> None:
        """Take the connection over; the exec's streams are tapped from now on."""
        self.one = one
        self._connection = connection
        self._owner = owner
        self._arrived = bytearray()
        self._waiting = bytearray()
        self._input_number = -1
        self._events = 0
        self._is_over = False
        connection.settimeout(0)
        one.stdout.tap = lambda chunk: self._give(OUTPUT, chunk)
        one.stderr.tap = lambda chunk: self._give(ERROR_OUTPUT, chunk)
        self._watch()

    @property
    def is_full(self) -> bool:
        """Whether whoever reads is too slow for more."""
        return len(self._waiting) >= MOST_WAITING_BYTES

    def _give(self, kind: bytes, chunk: bytes) -> None:
        self._waiting += frame(kind, chunk)
        self._act(self._flush)

    def tell(self, kind: bytes) -> None:
        """Say one thing that has no content."""
        self._give(kind, b"")

    def _act(self, action: Callable[[], None]) -> None:
        if self._is_over:
            return
        try:
            action()
        except (OSError, ValueError):
            self.close()
        else:
            self._watch()

    def _ready(self) -> None:
        self._act(self._both)

    def _both(self) -> None:
        self._flush()
        if self._wants_input:
            self._receive()
        if not self.is_full:
            self._owner.listen(self.one)

    @property
    def _wants_input(self) -> bool:
        source = self.one.input
        return source is None or len(source.waiting) < MOST_WAITING_BYTES

    def _flush(self) -> None:
        while self._waiting:
            try:
                sent = self._connection.send(memoryview(self._waiting)[:_CHUNK_BYTES])
            except BlockingIOError:
                break
            del self._waiting[:sent]
        if self.is_full:
            self._owner.pause(self.one)

    def _receive(self) -> None:
        try:
            chunk = self._connection.recv(_CHUNK_BYTES)
        except BlockingIOError:
            return
        if not chunk:
            raise ConnectionResetError
        self._arrived += chunk
        while len(self._arrived) >= HEADER.size:
            kind, size = HEADER.unpack_from(self._arrived)
            if size > LARGEST_BYTES:
                raise ValueError("a frame is longer than the limit")
            if len(self._arrived) < HEADER.size + size:
                break
            content = bytes(memoryview(self._arrived)[HEADER.size : HEADER.size + size])
            del self._arrived[: HEADER.size + size]
            self._take(kind, content)

    def _take(self, kind: bytes, content: bytes) -> None:
        source = self.one.input
        if kind == INPUT and source is not None:
            source.waiting += content
        elif kind == INPUT_END and source is not None:
            if self.one.is_terminal:
                source.waiting += END_OF_FILE
            else:
                source.is_ended = True
        elif kind == SIZE and self.one.is_terminal and len(content) == CELLS.size:
            if source is not None and source.descriptor >= 0:
                set_size(source.descriptor, *CELLS.unpack(content))
        elif kind == HANG_UP:
            self._hang_up()
        self._pour()

    def _hang_up(self) -> None:
        """Do what the end of a terminal's window does: its processes get SIGHUP."""
        if self.one.is_terminal:
            self._owner.pause(self.one)
            self.one.hang_up()
        else:
            self.one.ask_to_end("killed", "whoever gave its input went away", 0.0)

    def _pour(self) -> None:
        source = self.one.input
        if source is None:
            return
        is_blocked = source.pour()
        number = source.descriptor
        if self._input_number >= 0 and (not is_blocked or number != self._input_number):
            self._owner.forget(self._input_number)
            self._input_number = -1
        if is_blocked and self._input_number < 0:
            self._owner.watch(number, selectors.EVENT_WRITE, self._poured)
            self._input_number = number

    def _poured(self) -> None:
        self._act(self._pour)

    def _watch(self) -> None:
        if self._is_over:
            return
        events = (selectors.EVENT_READ if self._wants_input else 0) | (
            selectors.EVENT_WRITE if self._waiting else 0
        )
        if events != self._events:
            number = self._connection.fileno()
            if self._events:
                self._owner.forget(number)
            if events:
                self._owner.watch(number, events, self._ready)
            self._events = events

    def finish(self) -> None:
        """Say that the exec is over, and go once that is read."""
        self._waiting += frame(END)
        with contextlib.suppress(OSError):
            # What is left is little more than a pipe's fill; a reader that stopped gets less.
            self._connection.settimeout(0)
            self._flush()
            if self._waiting:
                self._owner.leave(self._connection.dup(), bytes(self._waiting))
        self.close()

    def close(self) -> None:
        """Let the connection go; the exec goes on. Idempotent."""
        if self._is_over:
            return
        self._is_over = True
        self._owner.gone(self)
        if self._events:
            self._owner.forget(self._connection.fileno())
        if self._input_number >= 0:
            self._owner.forget(self._input_number)
        self._connection.close()
        self.one.stdout.tap = self.one.stderr.tap = None
        self._owner.listen(self.one)


class _Farewell:
    """The rest of what a reader has to be told of an exec that is over."""

    def __init__(self, connection: socket.socket, rest: bytes, owner: Attachments) -> None:
        self._connection, self._rest, self._owner = connection, rest, owner
        self.deadline = time.monotonic() + _FLUSH_SECONDS
        owner.watch(connection.fileno(), selectors.EVENT_WRITE, self.go_on)

    def go_on(self) -> None:
        try:
            sent = self._connection.send(self._rest[:_CHUNK_BYTES])
        except BlockingIOError:
            return
        except OSError:
            sent = len(self._rest)
        self._rest = self._rest[sent:]
        # Each piece that is taken shows that somebody reads.
        self.deadline = time.monotonic() + _FLUSH_SECONDS
        if not self._rest:
            self.close()

    def close(self) -> None:
        self._owner.forget(self._connection.fileno())
        self._connection.close()
        self._owner.farewells.remove(self)


class Attachments:
    """Everybody who is attached to an exec of one sandbox."""

    def __init__(self, selector: selectors.BaseSelector) -> None:
        """Work on the shim's own event loop."""
        self._selector = selector
        self._by_exec: dict[str, Attachment] = {}
        self._held: dict[str, tuple[float, RunningExec]] = {}
        self.farewells: list[_Farewell] = []

    def begin(self, one: RunningExec) -> None:
        """Read an exec's output, or leave it until somebody is attached who wants all of it."""
        if one.is_attended and one.result is None:
            self._held[one.id] = (time.monotonic() + HELD_SECONDS, one)
        else:
            self.listen(one)

    def is_awaited(self, one: RunningExec) -> bool:
        """Say whether an exec's output, and so its end, waits for somebody who wants it all."""
        return one.id in self._held and one.result is None and one.kill_at is None

    def attach(self, connection: socket.socket, one: RunningExec | None) -> bool:
        """Attach a connection to an exec; False: it is refused, and stays the caller's."""
        if one is None or one.result is not None:
            reason = "unknown" if one is None else "ended"
            connection.sendall(protocol.encode({"op": "refused", "reason": reason}))
            return False
        connection.sendall(protocol.encode({"op": "attached"}))
        earlier = self._by_exec.pop(one.id, None)
        if earlier is not None:
            earlier.tell(TAKEN_OVER)
            earlier.close()
        self._by_exec[one.id] = Attachment(connection, one, self)
        self._held.pop(one.id, None)
        self.listen(one)
        return True

    def ended(self, one: RunningExec) -> None:
        """Tell whoever is attached to an exec that it is over."""
        self._held.pop(one.id, None)
        self.forget_closed(one)
        attachment = self._by_exec.pop(one.id, None)
        if attachment is not None:
            attachment.finish()

    def gone(self, attachment: Attachment) -> None:
        """Forget one whose connection ended."""
        if self._by_exec.get(attachment.one.id) is attachment:
            del self._by_exec[attachment.one.id]

    def next_tick(self) -> float | None:
        """Say when `tick` has something to do next, in monotonic seconds."""
        times = [when for when, _ in self._held.values()]
        times += [one.deadline for one in self.farewells]
        return min(times) if times else None

    def tick(self, now: float) -> None:
        """Wait no longer for those who do not come, or do not read."""
        for name, (until, one) in list(self._held.items()):
            if now >= until:
                del self._held[name]
                self.listen(one)
        for farewell in list(self.farewells):
            if now >= farewell.deadline:
                farewell.close()

    def leave(self, connection: socket.socket, rest: bytes) -> None:
        """Give a connection the rest of its bytes and close it."""
        self.farewells.append(_Farewell(connection, rest, self))

    def listen(self, one: RunningExec) -> None:
        """Read an exec's output from now on."""
        for stream in (one.stdout, one.stderr):
            if stream.open and not stream.is_watched:
                stream.is_watched = True
                action = functools.partial(self._read, stream)
                self.watch(stream.read_end, selectors.EVENT_READ, action)

    def pause(self, one: RunningExec) -> None:
        """Let an exec's output wait in its pipes."""
        for stream in (one.stdout, one.stderr):
            if stream.is_watched:
                stream.is_watched = False
                self.forget(stream.read_end)

    def forget_closed(self, one: RunningExec) -> None:
        """Watch streams no more that were closed; their numbers are free for others."""
        for stream in (one.stdout, one.stderr):
            if stream.is_watched and not stream.open:
                stream.is_watched = False
                self.forget(stream.read_end)

    def _read(self, stream: Stream) -> None:
        # One chunk per turn: a flood must not starve time limits and other execs. A stream that
        # was closed earlier in this turn has left its number to somebody else.
        if stream.open and stream.is_watched:
            number = stream.read_end
            if not stream.drain(once=True) and stream.is_watched:
                stream.is_watched = False
                self.forget(number)

    def watch(self, number: int, events: int, action: Callable[[], object]) -> None:
        """Have something done when a descriptor is ready."""
        self._selector.register(number, events, action)

    def forget(self, number: int) -> None:
        """Watch a descriptor no more."""
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(number)
