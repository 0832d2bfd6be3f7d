"""The shim: owner of one running sandbox, its execs and their records; outlives the server.

It is process 1 of a pid namespace of its own and holds a private mount namespace, so `kill -9`
of it takes every process and mount of the sandbox along; only cgroups and directories are left
to the reaper. Servers come and go on its socket; it serves whoever connects.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import time
from collections.abc import Callable

from forkyard.shim import connect, protocol
from forkyard.shim.ahead import Ahead
from forkyard.shim.attach import Attachments
from forkyard.shim.disk import DiskWatch
from forkyard.shim.execs import RunningExec, lost_result
from forkyard.shim.freezer import Freezer
from forkyard.shim.listeners import Handover
from forkyard.shim.protocol import Message
from forkyard.shim.sandbox import Sandbox, SandboxError
from forkyard.shim.stage import Stage

SOCKET = "shim.sock"
PID_FILE = "shim.pid"
_EMPTY_POLL_SECONDS = 0.002
"""How often a killed exec's group is asked whether it is empty; v1 offers no event for it."""
FORSAKEN_SECONDS = 10.0
_LINGER_SECONDS = 0.5
"""After `stopped`, how long to wait for the answer to be read before going."""


class Shim:
    """The event loop of one sandbox."""

    def __init__(self, stage: Stage, spec: Message, folder: int, first: socket.socket) -> None:
        """Keep what to run, the sandbox folder, and the connection that asked for it."""
        self._spec = spec
        self._folder = folder
        self._execs_folder = stage.open(spec["execs"], os.O_RDONLY | os.O_DIRECTORY)
        self._sandbox = Sandbox(stage, spec, folder)
        self._freezer = Freezer(self._sandbox.group, (self._sandbox.spawner.pid,))
        self._selector = selectors.DefaultSelector()
        self._attachments = Attachments(self._selector)
        self._connections: dict[socket.socket, protocol.LineBuffer] = {}
        self._execs: dict[str, RunningExec] = {}
        self._waiting: dict[str, set[socket.socket]] = {}
        self._over = False
        self._first = first
        self._disk: DiskWatch | None = None
        self._ahead = Ahead(self._sandbox, self._execs_folder, spec["capabilities"])
        self._is_furnished = False
        self._alone_since = time.monotonic()

    def run(self) -> int:
        """Make the sandbox, serve until told to stop, and leave nothing behind."""
        wake_read, wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.signal(signal.SIGCHLD, _ignore)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        self._watch(wake_read, lambda: self._woken(wake_read))
        listener = protocol.listen_at(self._folder, SOCKET)
        self._accept(self._first)
        try:
            self._sandbox.make()
            if self._spec["layers"] is not None:
                self._furnish(self._spec["layers"])
        except SandboxError as error:
            self._tell_all({**self._hello(), "trouble": str(error)})
            with contextlib.suppress(OSError):
                self._sandbox.unmake()
            return 1
        self._watch(listener.fileno(), lambda: self._accept_new(listener))
        self._ahead.begin(at_once=self._is_furnished)
        self._tell_all(self._hello())
        for handover in self._sandbox.handovers:
            self._hand_over(handover)
        while not self._over:
            for key, _ in self._selector.select(self._patience()):
                key.data()
            self._tick()
        return 0

    def _furnish(self, layers: list[str]) -> None:
        self._sandbox.furnish(layers)
        self._is_furnished = True
        limits = self._spec["limits"]
        most_bytes, most_inodes = limits["disk_bytes"], limits["disk_inodes"]
        if not limits["disk_is_hard"] and (most_bytes, most_inodes) != (None, None):
            self._disk = DiskWatch(most_bytes, most_inodes)

    def _furnish_later(self, connection: socket.socket, layers: list[str]) -> None:
        trouble = None
        try:
            if not self._is_furnished:
                self._furnish(layers)
        except SandboxError as error:
            trouble = str(error)
            with contextlib.suppress(OSError):
                self._sandbox.unmake()
            self._over = True
        self._tell(connection, {"op": "furnished", "trouble": trouble})

    def _hand_over(self, handover: Handover) -> None:
        """Give a process outside the sandbox's sockets, now and whenever another one is there."""
        if (connection := handover.connect()) is not None:
            number = connection.fileno()

            def told() -> None:
                if not handover.heard():
                    self._selector.unregister(number)

            self._watch(number, told)

    def _hand_over_again(self, now: float) -> None:
        for handover in self._sandbox.handovers:
            if handover.next_try is not None and now >= handover.next_try:
                self._hand_over(handover)

    def _hello(self) -> Message:
        return {
            "op": "hello",
            "workspace": self._spec["workspace"],
            "epoch": self._spec["epoch"],
            "furnished": self._is_furnished,
            "execs": [name for name, one in self._execs.items() if one.result is None],
            "trouble": None,
        }

    def _watch(self, descriptor: int, action: Callable[[], object]) -> None:
        self._selector.register(descriptor, selectors.EVENT_READ, action)

    def _accept_new(self, listener: socket.socket) -> None:
        connection, _ = listener.accept()
        self._accept(connection)
        self._tell(connection, self._hello())

    def _accept(self, connection: socket.socket) -> None:
        # Blocking sends to a server that does not read must not stop the sandbox's time limits.
        connection.settimeout(5.0)
        self._connections[connection] = protocol.LineBuffer()
        self._watch(connection.fileno(), lambda: self._received(connection))

    def _received(self, connection: socket.socket) -> None:
        try:
            chunk = connection.recv(1 << 16)
            messages = list(self._connections[connection].feed(chunk)) if chunk else []
        except (OSError, ValueError):
            chunk, messages = b"", []
        if not chunk:
            self._drop(connection)
            return
        for message in messages:
            self._handle(connection, message)

    def _drop(self, connection: socket.socket) -> None:
        if connection in self._connections:
            del self._connections[connection]
            self._selector.unregister(connection.fileno())
            for waiting in self._waiting.values():
                waiting.discard(connection)
            connection.close()
            self._alone_since = time.monotonic()
            self._ahead.drop(owner=connection)
            if self._freezer.owner is connection:
                self._thaw()

    def _tell(self, connection: socket.socket, message: Message) -> None:
        try:
            connection.sendall(protocol.encode(message))
        except OSError:
            self._drop(connection)

    def _tell_all(self, message: Message) -> None:
        for connection in list(self._connections):
            self._tell(connection, message)

    def _handle(self, connection: socket.socket, message: Message) -> None:
        if message["op"] in ("hold", "drop", "exec", "kill"):
            self._handle_exec(connection, message)
            return
        match message["op"]:
            case "furnish":
                self._furnish_later(connection, message["layers"])
            case "freeze":
                self._freeze(connection, message["seconds"])
            case "thaw":
                held = self._freezer.owner is connection
                seconds = self._thaw() if held else 0.0
                self._tell(connection, {"op": "thawed", "held": held, "seconds": seconds})
            case "attach" | "connect":
                self._hand_on(connection, message)
            case "stop":
                self._thaw()
                self._stop(connection)
            case _:
                pass

    def _handle_exec(self, connection: socket.socket, message: Message) -> None:
        if self._freezer.is_frozen:
            # One that is not held now is made ready when it is asked for.
            if message["op"] in ("exec", "kill"):
                self._freezer.waiting.append((connection, message))
            return
        match message["op"]:
            case "hold" if self._is_furnished:
                self._ahead.hold(connection, message["spec"])
            case "drop":
                self._ahead.drop(name=message["exec"])
            case "exec":
                self._exec(connection, message["spec"])
            case "kill" if (one := self._execs.get(message["exec"])) is not None:
                one.ask_to_end("killed", message.get("detail"), message["grace"])
            case _:
                pass

    def _freeze(self, connection: socket.socket, seconds: float) -> None:
        trouble = None
        self._ahead.drop()  # what is frozen does not end
        try:
            self._freezer.freeze(connection, seconds)
        except OSError as error:
            trouble = error.strerror or str(error)
        self._tell(connection, {"op": "frozen", "trouble": trouble})

    def _thaw(self) -> float:
        """Go on with everything; time limits did not run meanwhile."""
        seconds = self._freezer.thaw()
        for one in self._running():
            one.put_off(seconds)
        waiting, self._freezer.waiting = self._freezer.waiting, []
        for connection, message in waiting:
            if connection in self._connections:
                self._handle(connection, message)
        return seconds

    def _hand_on(self, connection: socket.socket, message: Message) -> None:
        """Leave a connection to the one thing that it is for from now on."""
        del self._connections[connection]
        self._selector.unregister(connection.fileno())
        if message["op"] == "connect":
            connect.into(self._sandbox.init_descriptor, message["port"], connection)
            return
        with contextlib.suppress(OSError):
            if self._attachments.attach(connection, self._execs.get(message["exec"])):
                return
        connection.close()

    def _exec(self, connection: socket.socket, spec: Message) -> None:
        name = spec["id"]
        self._waiting.setdefault(name, set()).add(connection)
        if name not in self._execs:
            try:
                one = self._ahead.start(spec)
            except FileExistsError:
                # A shim before this one started it and died: never run it a second time.
                self._refuse(connection, name, "the sandbox it ran in died")
                return
            except OSError as error:
                self._refuse(connection, name, f"cannot keep its output: {error.strerror}")
                return
            self._execs[name] = one
            self._attachments.begin(one)
        self._settle(self._execs[name])

    def _refuse(self, connection: socket.socket, name: str, detail: str) -> None:
        self._waiting.pop(name, None)
        self._tell(connection, {"op": "ended", "exec": name, "result": lost_result(name, detail)})

    def _settle(self, one: RunningExec) -> None:
        if self._attachments.is_awaited(one) or not one.finish():
            return
        self._attachments.ended(one)
        for connection in self._waiting.pop(one.id, set()):
            self._tell(connection, {"op": "ended", "exec": one.id, "result": one.result})
        # Who waits is told first: making a file may have to wait for the disk.
        one.keep()
        self._attachments.forget_closed(one)
        self._ahead.hurry()

    def _woken(self, wake: int) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(wake, 4096)
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid in self._sandbox.pillars:
                self._lost()
                return
            for one in self._execs.values():
                if one.pid == pid and one.status is None:
                    one.exited(status)
                    self._settle(one)
                    break

    def _lost(self) -> None:
        # Container or spawner died, and it was not our doing.
        for one in self._execs.values():
            if one.result is None:
                one.lose("the sandbox died under it")
                self._settle(one)
        with contextlib.suppress(OSError):
            self._sandbox.unmake()
        self._over = True

    def _running(self) -> list[RunningExec]:
        return [one for one in self._execs.values() if one.result is None]

    def _patience(self) -> float | None:
        now = time.monotonic()
        if self._freezer.until is not None:
            return max(0.0, self._freezer.until - now)
        times = [when for one in self._running() if (when := one.next_tick()) is not None]
        if any(one.status is not None or one.kill_at is not None for one in self._running()):
            times.append(now + _EMPTY_POLL_SECONDS)
        if self._disk is not None:
            times.append(self._disk.next_look)
        times += self._ahead.next_ticks()
        if (when := self._attachments.next_tick()) is not None:
            times.append(when)
        if self._is_forsaken:
            times.append(self._alone_since + FORSAKEN_SECONDS)
        times += [when for one in self._sandbox.handovers if (when := one.next_try) is not None]
        return max(0.0, min(times) - now) if times else None

    @property
    def _is_forsaken(self) -> bool:
        """Whether this was made ahead for a server that is gone: nothing can be lost with it."""
        return not self._is_furnished and not self._connections

    def _tick(self) -> None:
        if self._over:
            # Its folder may be on its way out already: nothing may appear in it any more.
            return
        now = time.monotonic()
        if self._freezer.until is not None:
            if now >= self._freezer.until:
                self._thaw()
            return
        self._attachments.tick(now)
        for one in self._running():
            one.tick(now)
            self._settle(one)
        if self._disk is not None and now >= self._disk.next_look and self._disk.look(now):
            for one in self._running():
                one.ask_to_end("disk-limit", self._disk.words, 0.0)
        self._ahead.tick(now, is_furnished=self._is_furnished)
        self._hand_over_again(now)
        if self._is_forsaken and now >= self._alone_since + FORSAKEN_SECONDS:
            with contextlib.suppress(OSError):
                self._sandbox.unmake()
            self._over = True

    def _stop(self, connection: socket.socket) -> None:
        for one in self._running():
            one.ask_to_end("killed", "the workspace was stopped", 0.0)
        self._sandbox.unmake()
        self._woken_without_pipe()
        for one in self._running():
            one.lose("it did not end when the workspace was stopped")
            self._settle(one)
        self._tell(connection, {"op": "stopped"})
        connection.settimeout(_LINGER_SECONDS)
        self._over = True

    def _woken_without_pipe(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return
                for one in self._execs.values():
                    if one.pid == pid and one.status is None:
                        one.exited(status)
                        self._settle(one)


def _ignore(_number: int, _frame: object) -> None:
    """Exist, so that SIGCHLD reaches the wake-up pipe."""
