"""One connection of a sandbox to the proxy, from its first byte to its last.

What is refused is told in words where HTTP has a place for them, and recorded always. The host is
connected to at an address that was looked at, never by its name again; nothing is sent to it
before its name was found in the client's TLS greeting.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
from dataclasses import dataclass
from http import HTTPStatus

from forkyard.gateway.egress.addresses import why_refused
from forkyard.gateway.egress.hello import ACCESS_DENIED, Hello, HelloError
from forkyard.gateway.egress.names import LeadError, Names
from forkyard.gateway.egress.records import Entry, Records
from forkyard.gateway.egress.request import (
    MOST_HEAD_BYTES,
    RequestError,
    Wanted,
    answer_head,
    read_request,
)
from forkyard.model.connection import ConnectionOutcome
from forkyard.model.hosts import HostRule, lets_in, plain_name, suggestion

HEAD_SECONDS = 15.0
"""For a request's head, and for a TLS greeting, to be whole: they come from the same machine."""
CONNECT_SECONDS = 15.0
IDLE_SECONDS = 600.0
"""Without a byte in either direction; a model's host may think for minutes."""
_CHUNK = 64 * 1024
_LAST_SECONDS = 2.0
"""For a refused client to read why."""
_INTERIM = range(100, 200)
_MOST_INTERIM = 8


class Ending(Exception):  # noqa: N818 - not every end is an error
    """How a connection ends that is not passed on to its end."""

    def __init__(self, outcome: ConnectionOutcome, words: str, status: int | None = None) -> None:
        """Say how and why, and what HTTP calls it; None: it has no place for words any more."""
        super().__init__(words)
        self.outcome = outcome
        self.words = words
        self.status = status


@dataclass(slots=True, kw_only=True)
class Exchange:
    """See the module."""

    client: socket.socket
    rules: tuple[HostRule, ...]
    names: Names
    turn: asyncio.Semaphore
    records: Records
    idle_seconds: float = IDLE_SECONDS
    head_seconds: float = HEAD_SECONDS
    _entry: Entry | None = None
    _host: socket.socket | None = None
    _is_tls: bool = False
    _moved: float = 0.0

    async def run(self) -> None:
        """Carry it to its end, and record that.

        Cancellation:
            It is cut, and recorded as that.
        """
        outcome, words = ConnectionOutcome.CLOSED, ""
        try:
            await self._carry()
        except Ending as ending:
            outcome, words = ending.outcome, ending.words
            await self._tell(ending)
        except (OSError, ValueError) as error:
            outcome, words = ConnectionOutcome.CUT, f"it broke: {type(error).__name__}"
        except asyncio.CancelledError:
            outcome, words = ConnectionOutcome.CUT, "its workspace was stopped"
            raise
        finally:
            if self._entry is not None:
                self.records.end(self._entry, outcome, words)
            for one in (self.client, self._host):
                if one is not None:
                    one.close()

    async def _carry(self) -> None:
        try:
            async with asyncio.timeout(self.head_seconds):
                head, rest = await self._head(self.client)
        except TimeoutError:
            self._entry = self.records.begin("?", 0)
            raise Ending(
                ConnectionOutcome.REFUSED,
                f"its request did not come within {self.head_seconds:g} s",
                408,
            ) from None
        if not head:
            return  # connected, and said nothing
        wanted = self._wanted(head)
        self._entry = entry = self.records.begin(wanted.host, wanted.port)
        if not lets_in(self.rules, wanted.host, wanted.port):
            entry_words = suggestion(wanted.host, wanted.port)
            words = f'it is not in the allowlist; add "{entry_words}" to let it in'
            raise Ending(ConnectionOutcome.REFUSED, words, 403)
        self._host = await self._connect(wanted, entry)
        if wanted.is_tunnel:
            await self._tunnel(wanted, entry, rest)
        else:
            await self._plain(wanted, entry, rest)

    def _wanted(self, head: bytes) -> Wanted:
        try:
            return read_request(head)
        except RequestError as error:
            self._entry = self.records.begin(error.host, error.port)
            raise Ending(ConnectionOutcome.REFUSED, str(error), error.status) from None

    async def _head(self, source: socket.socket, begun: bytes = b"") -> tuple[bytes, bytes]:
        """Read up to the empty line; also gives what came after it."""
        content = bytearray(begun)
        while (place := content.find(b"\r\n\r\n")) < 0:
            if len(content) > MOST_HEAD_BYTES:
                self._entry = self._entry or self.records.begin("?", 0)
                words = f"a head is longer than {MOST_HEAD_BYTES} bytes"
                raise Ending(ConnectionOutcome.REFUSED, words, 431)
            chunk = await asyncio.get_running_loop().sock_recv(source, _CHUNK)
            if not chunk:
                return b"", b""
            content += chunk
        return bytes(content[: place + 4]), bytes(content[place + 4 :])

    # -- the host ----------------------------------------------------------------------------

    async def _connect(self, wanted: Wanted, entry: Entry) -> socket.socket:
        try:
            addresses = await self.names.addresses(wanted.host, self.turn)
        except LeadError as error:
            entry.address = error.address
            if error.is_refusal:
                raise Ending(ConnectionOutcome.REFUSED, str(error), 403) from None
            raise Ending(ConnectionOutcome.FAILED, str(error), 502) from None
        trouble = "no address"
        for address in addresses:
            entry.address = address
            try:
                async with asyncio.timeout(CONNECT_SECONDS):
                    return await _connected(address, wanted.port)
            except TimeoutError:
                trouble = f"no answer from {address} within {CONNECT_SECONDS:g} s"
            except OSError as error:
                trouble = f"{address}: {os.strerror(error.errno or errno.EIO)}"
        words = f"it cannot be connected to: {trouble}"
        raise Ending(ConnectionOutcome.FAILED, words, 504 if "no answer" in trouble else 502)

    async def _tunnel(self, wanted: Wanted, entry: Entry, begun: bytes) -> None:
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(self.client, b"HTTP/1.1 200 Connected\r\n\r\n")
        self._is_tls = True
        hello = await self._hello(wanted.host, begun)
        self.records.opened(entry)
        await self._send_host(hello, entry)
        await self._both_ways(entry, None)

    async def _hello(self, host: str, begun: bytes) -> bytes:
        loop, hello, named = asyncio.get_running_loop(), Hello(), None
        try:
            async with asyncio.timeout(self.head_seconds):
                named = hello.feed(begun) if begun else None
                while named is None:
                    chunk = await loop.sock_recv(self.client, _CHUNK)
                    if not chunk:
                        words = "it ended before its TLS greeting was whole"
                        raise Ending(ConnectionOutcome.REFUSED, words)
                    named = hello.feed(chunk)
            is_same = plain_name(named) == host
        except HelloError as error:
            raise Ending(ConnectionOutcome.REFUSED, str(error)) from None
        except TimeoutError:
            words = f"its TLS greeting did not come within {self.head_seconds:g} s"
            raise Ending(ConnectionOutcome.REFUSED, words) from None
        except ValueError:
            is_same = False
        if not is_same:
            shown = named[:80] if named and named.isprintable() else "another host"
            words = f"its TLS greeting is for {shown}, not for the host that was asked for"
            raise Ending(ConnectionOutcome.REFUSED, words)
        return hello.content

    async def _plain(self, wanted: Wanted, entry: Entry, begun: bytes) -> None:
        self.records.opened(entry)
        await self._send_host(wanted.head, entry)
        first = begun[: wanted.body_bytes]
        if first:
            await self._send_host(first, entry)
        await self._both_ways(entry, wanted.body_bytes - len(first))

    async def _send_host(self, content: bytes, entry: Entry) -> None:
        if self._host is None:
            raise OSError
        async with asyncio.timeout(self.idle_seconds):
            await asyncio.get_running_loop().sock_sendall(self._host, content)
        entry.sent_bytes += len(content)

    # -- passing on --------------------------------------------------------------------------

    async def _both_ways(self, entry: Entry, body_bytes: int | None) -> None:
        """Pass bytes on until both ends are done, or neither has said anything for too long.

        Args:
            entry: Where they are counted.
            body_bytes: Of a plain request: how many more the host may be sent.
        """
        loop = asyncio.get_running_loop()
        self._moved = loop.time()
        out = loop.create_task(self._outward(entry, body_bytes))
        back = loop.create_task(self._back(entry, is_plain=body_bytes is not None))
        both = {out, back}
        try:
            while both:
                left = self._moved + self.idle_seconds - loop.time()
                if left <= 0:
                    words = f"nothing came for {self.idle_seconds:g} s"
                    raise Ending(ConnectionOutcome.CUT, words)
                done, both = await asyncio.wait(
                    both, timeout=left, return_when=asyncio.FIRST_COMPLETED
                )
                for one in done:
                    one.result()
                if back in done and body_bytes is not None:
                    return  # the one answer was given
        except ConnectionError:
            return  # an end that broke off is an end
        finally:
            for one in (out, back):
                one.cancel()
            await asyncio.gather(out, back, return_exceptions=True)

    async def _outward(self, entry: Entry, body_bytes: int | None) -> None:
        loop = asyncio.get_running_loop()
        while chunk := await loop.sock_recv(self.client, _CHUNK):
            self._moved = loop.time()
            if body_bytes is not None:
                # Past its body a request has nothing more to say: another one would hide there.
                chunk, body_bytes = chunk[:body_bytes], body_bytes - len(chunk[:body_bytes])
                if not chunk:
                    continue
            await self._pass(self._host, chunk)
            entry.sent_bytes += len(chunk)
        if body_bytes is None and self._host is not None:
            with contextlib.suppress(OSError):
                self._host.shutdown(socket.SHUT_WR)

    async def _back(self, entry: Entry, *, is_plain: bool) -> None:
        loop, host = asyncio.get_running_loop(), self._host
        if host is None:
            raise OSError
        if is_plain:
            await self._answer(entry, host)
        while chunk := await loop.sock_recv(host, _CHUNK):
            self._moved = loop.time()
            entry.received_bytes += len(chunk)
            await self._pass(self.client, chunk)
        with contextlib.suppress(OSError):
            self.client.shutdown(socket.SHUT_WR)

    async def _answer(self, entry: Entry, host: socket.socket) -> None:
        """Pass an answer's head on, saying that no second request is read here."""
        rest = b""
        for _ in range(_MOST_INTERIM):
            head, rest = await self._head(host, rest)
            if not head:
                raise Ending(ConnectionOutcome.FAILED, "the host ended without an answer", 502)
            entry.received_bytes += len(head)
            try:
                head, status = answer_head(head)
            except RequestError as error:
                raise Ending(ConnectionOutcome.FAILED, str(error), error.status) from None
            await self._pass(self.client, head)
            if status not in _INTERIM:
                break
        if rest:
            entry.received_bytes += len(rest)
            await self._pass(self.client, rest)

    async def _pass(self, target: socket.socket | None, chunk: bytes) -> None:
        if target is None:
            raise OSError
        loop = asyncio.get_running_loop()
        view = memoryview(chunk)
        for start in range(0, len(view), _CHUNK):
            await loop.sock_sendall(target, view[start : start + _CHUNK])
            self._moved = loop.time()

    async def _tell(self, ending: Ending) -> None:
        loop = asyncio.get_running_loop()
        content = b""
        if self._is_tls:
            content = ACCESS_DENIED
        elif ending.status is not None:
            content = refusal(ending.status, ending.words, self._entry)
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(_LAST_SECONDS):
                if content:
                    await loop.sock_sendall(self.client, content)
                self.client.shutdown(socket.SHUT_WR)
                # With unread bytes a close would be a reset, and the words would be lost.
                while content and await loop.sock_recv(self.client, _CHUNK):
                    pass


def refusal(status: int, words: str, entry: Entry | None) -> bytes:
    """Give the answer to a request that is not honoured."""
    where = "this" if entry is None or entry.port == 0 else f"{entry.host}:{entry.port}"
    line = f"forkyard: cannot connect to {where}: {words}"
    # Clients of CONNECT show the first line and drop the body.
    reason = line if len(line.encode()) < MOST_HEAD_BYTES // 32 else HTTPStatus(status).phrase
    head = (
        f"HTTP/1.1 {status} {reason}\r\nContent-Type: text/plain; charset=utf-8\r\n"
        f"Content-Length: {len(line.encode()) + 1}\r\nConnection: close\r\n\r\n"
    )
    return f"{head}{line}\n".encode()


async def _connected(address: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    made = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
    try:
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await asyncio.get_running_loop().sock_connect(made, (address, port))
        _refuse_ourselves(made)
    except BaseException:
        made.close()
        raise
    return made


def _refuse_ourselves(connection: socket.socket) -> None:
    there, here = connection.getpeername()[0], connection.getsockname()[0]
    if why_refused(there) is not None or there == here:
        raise OSError(errno.EHOSTUNREACH, "it leads back to this machine")
