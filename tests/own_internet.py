"""An internet of a test's own: public names and addresses that really answer, on this machine.

Two network namespaces, joined by one cable. In the first, *here*, a whole server with its
sandboxes is started: it has one public-looking address of its own, a loopback, and a resolver
setting that names the other side. In the second, *out there*, a test listens at whatever
addresses it says, and its names are answered from a table. Nothing of it reaches the real network,
and nothing is left when the test's process ends: namespaces live as long as descriptors to them.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import pickle
import socket
import struct
import subprocess
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from forkyard.shim import kernel

T = TypeVar("T")

HERE = "11.1.1.2"
"""The one address, besides loopback, of the machine that the server believes to be on."""
GATEWAY = "11.1.1.1"
RESOLVER = "11.53.53.53"
_HERE_6, _GATEWAY_6 = "2a0b:11::2", "2a0b:11::1"
_A, _AAAA = 1, 28


class OwnInternet:
    """See the module; made by `own_internet`."""

    def __init__(self, folder: Path) -> None:
        """Make both namespaces and the cable; `folder` is for the resolver's setting."""
        self.names: dict[str, tuple[str, ...]] = {}
        """Addresses by name, in lower case and without a last dot; may change at any time."""
        self.asked: list[str] = []
        """Names that somebody asked for, in order."""
        self.in_turn: set[str] = set()
        """Names whose addresses are given one at a time, a new one with each question."""
        self._answered: dict[str, int] = {}
        self._addresses: set[str] = set()
        self._out_there = _in_thread(_new_network)
        self._here = _in_thread(_new_network)
        self.resolver = folder / "resolv.conf"
        """The setting of who is asked for names, of all that runs here."""
        self.resolver.write_text(f"nameserver {RESOLVER}\noptions timeout:2 attempts:1\n")
        self._files = _mount_namespace(self.resolver)
        self._connect()
        self._answering = self.listen(RESOLVER, 53, kind=socket.SOCK_DGRAM)
        self._thread = threading.Thread(target=self._answer_names, daemon=True)
        self._thread.start()

    def _connect(self) -> None:
        out_there = f"/proc/{os.getpid()}/fd/{self._out_there}"
        for side, commands in (
            (
                self.here,
                (
                    "link set lo up",
                    f"link add cable type veth peer name cable netns {out_there}",
                    f"addr add {HERE}/24 dev cable",
                    f"-6 addr add {_HERE_6}/64 dev cable nodad",
                    "link set cable up",
                    f"route add default via {GATEWAY}",
                    f"-6 route add default via {_GATEWAY_6}",
                ),
            ),
            (
                self.out_there,
                (
                    "link set lo up",
                    f"addr add {GATEWAY}/24 dev cable",
                    f"-6 addr add {_GATEWAY_6}/64 dev cable nodad",
                    "link set cable up",
                ),
            ),
        ):
            for command in commands:
                _run([*side(), "ip", *command.split()])

    def here(self) -> list[str]:
        """Give the words before a command that make it run where the server is."""
        prefix = f"/proc/{os.getpid()}/fd/"
        return [
            *("nsenter", f"--net={prefix}{self._here}", f"--mount={prefix}{self._files}"),
            *(f"--wd={Path.cwd()}", "--"),
        ]

    def out_there(self) -> list[str]:
        """Give the words before a command that make it run on the other side."""
        return ["nsenter", f"--net=/proc/{os.getpid()}/fd/{self._out_there}", "--"]

    def add_address(self, address: str) -> None:
        """Have the other side answer at an address, whatever range it is of. Idempotent."""
        if address not in self._addresses:
            self._addresses.add(address)
            is_old = ipaddress.ip_address(address).version == 4
            words = ["ip"] if is_old else ["ip", "-6"]
            bits, extra = ("32", []) if is_old else ("128", ["nodad"])
            _run(
                [*self.out_there(), *words, "addr", "add", f"{address}/{bits}", "dev", "lo", *extra]
            )

    def name(self, name: str, *addresses: str) -> None:
        """Have a name resolve to addresses, which answer from now on."""
        for address in addresses:
            self.add_address(address)
        self.names[name] = addresses

    def listen(
        self, address: str, port: int, *, kind: socket.SocketKind = socket.SOCK_STREAM
    ) -> socket.socket:
        """Make a listening socket out there, to be answered by the test itself."""
        self.add_address(address)
        return self._bound(self._out_there, address, port, kind)

    def listen_here(self, address: str, port: int) -> socket.socket:
        """Make a listening socket where the server is: what no sandbox may ever reach."""
        return self._bound(self._here, address, port, socket.SOCK_STREAM)

    @staticmethod
    def _bound(network: int, address: str, port: int, kind: socket.SocketKind) -> socket.socket:
        def make() -> socket.socket:
            kernel.setns(network, kernel.CLONE_NEWNET)
            family = socket.AF_INET6 if ":" in address else socket.AF_INET
            made = socket.socket(family, kind)
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            made.bind((address, port))
            if kind is socket.SOCK_STREAM:
                made.listen(512)
            return made

        return _in_thread(make)

    def run_here(self, body: Callable[[], T]) -> T:
        """Run a function where the server is, in a process of its own, and give what it returns.

        Raises:
            AssertionError: It raised; its traceback is told.
        """
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            status = 1
            try:
                os.close(read)
                kernel.setns(self._here, kernel.CLONE_NEWNET)
                kernel.setns(self._files, kernel.CLONE_NEWNS)
                try:
                    told = pickle.dumps((True, body()))
                except BaseException:  # noqa: BLE001 - told to the test, whatever it is
                    told = pickle.dumps((False, traceback.format_exc()))
                with os.fdopen(write, "wb") as pipe:
                    pipe.write(told)
                status = 0
            finally:
                os._exit(status)
        os.close(write)
        with os.fdopen(read, "rb") as pipe:
            content = pipe.read()
        os.waitpid(child, 0)
        assert content, "it died without a word"
        is_good, result = pickle.loads(content)  # noqa: S301 - of our own child
        assert is_good, result
        return result  # type: ignore[no-any-return]

    def close(self) -> None:
        """Let go of all of it."""
        with contextlib.suppress(OSError):
            self._answering.shutdown(socket.SHUT_RDWR)
        self._thread.join(5)
        self._answering.close()
        for descriptor in (self._out_there, self._here, self._files):
            os.close(descriptor)

    def _answer_names(self) -> None:
        while True:
            try:
                question, asker = self._answering.recvfrom(4096)
            except OSError:
                return
            if not question:
                return
            with contextlib.suppress(OSError, IndexError, struct.error, UnicodeDecodeError):
                self._answering.sendto(self._answer(question), asker)

    def _answer(self, question: bytes) -> bytes:
        labels, place = [], 12
        while length := question[place]:
            labels.append(question[place + 1 : place + 1 + length].decode("ascii"))
            place += length + 1
        (kind,) = struct.unpack_from("!H", question, place + 1)
        asked = question[12 : place + 5]
        name = ".".join(labels).lower()
        self.asked.append(name)
        found = self.names.get(name)
        records = [
            packed
            for one in self._chosen(name, kind, found or ())
            if len(packed := ipaddress.ip_address(one).packed) == {_A: 4, _AAAA: 16}.get(kind)
        ]
        flags = 0x8180 | (0 if found is not None else 3)
        head = question[:2] + struct.pack("!5H", flags, 1, len(records), 0, 0)
        return (
            head
            + asked
            + b"".join(struct.pack("!HHHIH", 0xC00C, kind, 1, 0, len(one)) + one for one in records)
        )

    def _chosen(self, name: str, kind: int, found: Sequence[str]) -> Sequence[str]:
        if name not in self.in_turn or kind != _A or not found:
            return found
        count = self._answered[name] = self._answered.get(name, -1) + 1
        return (found[min(count, len(found) - 1)],)


@contextmanager
def own_internet(names: Mapping[str, str] | None = None) -> Iterator[OwnInternet]:
    """Give an internet in which these names resolve to these addresses."""
    with tempfile.TemporaryDirectory(prefix="fy-net-") as folder:
        made = OwnInternet(Path(folder))
        try:
            for name, address in (names or {}).items():
                made.name(name, address)
            yield made
        finally:
            made.close()


def _run(words: Sequence[str]) -> None:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(words)}: {done.stderr}"


def _in_thread(body: Callable[[], T]) -> T:
    """Run something in a thread of its own, whose network namespace may change."""
    results: list[T] = []
    thread = threading.Thread(target=lambda: results.append(body()))
    thread.start()
    thread.join()
    return results[0]


def _new_network() -> int:
    kernel.unshare(kernel.CLONE_NEWNET)
    return os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)


def _mount_namespace(resolver: Path) -> int:
    """Make a mount namespace whose resolver's setting is this file; it lives by its descriptor."""
    read, write = os.pipe()
    done_read, done_write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            kernel.unshare(kernel.CLONE_NEWNS)
            kernel.mount("", "/", "", kernel.MS_REC | kernel.MS_PRIVATE)
            kernel.mount(str(resolver), "/etc/resolv.conf", "", kernel.MS_BIND)
            os.write(write, b".")
            os.read(done_read, 1)
        finally:
            os._exit(0)
    os.close(write)
    assert os.read(read, 1) == b".", "cannot make a mount namespace"
    descriptor = os.open(f"/proc/{child}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
    os.write(done_write, b".")
    os.waitpid(child, 0)
    for one in (read, done_read, done_write):
        os.close(one)
    return descriptor
