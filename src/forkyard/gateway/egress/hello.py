"""The name in a TLS client's first message, read strictly: what is odd is refused, not guessed.

The message may come in any number of segments and records. Its name has to be the one that was
asked for, in the clear: without one, with an encrypted one, or with two there is no saying whom
the client would talk to.
"""

from __future__ import annotations

MOST_BYTES = 64 * 1024
"""Of records, until the message is whole; real ones have a few kilobytes."""
_HANDSHAKE, _CLIENT_HELLO = 22, 1
_MOST_RECORD = 1 << 14
_MOST_HELLO = 32 * 1024
_RANDOM_BYTES, _MOST_SESSION = 34, 32
_SERVER_NAME, _ENCRYPTED_HELLO, _ENCRYPTED_NAME = 0, 0xFE0D, 0xFFCE
_MOST_VERSION = 4

ACCESS_DENIED = bytes((21, 3, 3, 0, 2, 2, 49))
"""A record that ends the client's handshake: the peer was refused."""


class HelloError(ValueError):
    """It cannot be let through; the message is one clause."""


class _Reader:
    """Takes values off bytes, and never more than there are."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._place = 0

    def is_over(self) -> bool:
        return self._place == len(self._content)

    def take(self, count: int) -> bytes:
        end = self._place + count
        if end > len(self._content):
            raise HelloError("its TLS greeting is cut short")
        taken, self._place = self._content[self._place : end], end
        return taken

    def number(self, count: int) -> int:
        return int.from_bytes(self.take(count), "big")

    def vector(self, count: int) -> bytes:
        """Take what a length of so many bytes stands before."""
        return self.take(self.number(count))


class Hello:
    """Collects what a client sends until its first message is whole."""

    def __init__(self) -> None:
        """Have nothing."""
        self._raw = bytearray()
        self._place = 0
        self._message = bytearray()

    @property
    def content(self) -> bytes:
        """Give everything that came, for the server."""
        return bytes(self._raw)

    def feed(self, chunk: bytes) -> str | None:
        """Add what came; give the server's name once the message is whole.

        Raises:
            HelloError: It is no TLS, too long, or has no name that can be checked.
        """
        self._raw += chunk
        while len(self._raw) - self._place >= 5:  # noqa: PLR2004 - a record's head
            kind, major, minor = self._raw[self._place : self._place + 3]
            length = int.from_bytes(self._raw[self._place + 3 : self._place + 5], "big")
            if kind != _HANDSHAKE or major != 3 or minor > _MOST_VERSION:  # noqa: PLR2004 - TLS
                raise HelloError("it does not begin with a TLS greeting")
            if not 0 < length <= _MOST_RECORD:
                raise HelloError("its TLS greeting has a record of a wrong length")
            end = self._place + 5 + length
            if len(self._raw) < end:
                break
            self._message += self._raw[self._place + 5 : end]
            self._place = end
            if (found := self._whole()) is not None:
                return found
        if self._raw and self._raw[0] != _HANDSHAKE:
            raise HelloError("it does not begin with a TLS greeting")
        if len(self._raw) > MOST_BYTES:
            raise HelloError(f"its TLS greeting is longer than {MOST_BYTES} bytes")
        return None

    def _whole(self) -> str | None:
        if len(self._message) < 4:  # noqa: PLR2004 - a message's head
            return None
        length = int.from_bytes(self._message[1:4], "big")
        if self._message[0] != _CLIENT_HELLO or length > _MOST_HELLO:
            raise HelloError("it does not begin with a TLS greeting of a client")
        if len(self._message) < 4 + length:
            return None
        if len(self._message) > 4 + length:
            raise HelloError("its TLS greeting is followed by another message")
        return server_name(bytes(self._message[4:]))


def server_name(body: bytes) -> str:
    """Give the name that a ClientHello asks for, as it is written.

    Raises:
        HelloError: There is none, or none that could be trusted.
    """
    reader = _Reader(body)
    reader.take(_RANDOM_BYTES)
    if len(reader.vector(1)) > _MOST_SESSION:
        raise HelloError("its TLS greeting has a session of a wrong length")
    reader.vector(2)
    reader.vector(1)
    if reader.is_over():
        raise HelloError("its TLS greeting names no host (SNI)")
    extensions = _Reader(reader.vector(2))
    if not reader.is_over():
        raise HelloError("its TLS greeting has more after its end")
    found: dict[int, bytes] = {}
    while not extensions.is_over():
        kind = extensions.number(2)
        if kind in found:
            raise HelloError("its TLS greeting says one thing twice")
        found[kind] = extensions.vector(2)
    if _ENCRYPTED_HELLO in found or _ENCRYPTED_NAME in found:
        raise HelloError("its TLS greeting hides a name (ECH), so the host cannot be checked")
    if _SERVER_NAME not in found:
        raise HelloError("its TLS greeting names no host (SNI)")
    return _one_name(found[_SERVER_NAME])


def _one_name(extension: bytes) -> str:
    reader = _Reader(extension)
    names = _Reader(reader.vector(2))
    if not reader.is_over() or names.is_over():
        raise HelloError("its TLS greeting names no host (SNI)")
    kind, name = names.number(1), names.vector(2)
    if kind != 0 or not names.is_over():
        raise HelloError("its TLS greeting does not name exactly one host")
    try:
        return name.decode("ascii")
    except UnicodeDecodeError:
        raise HelloError("its TLS greeting names no host in ASCII") from None
