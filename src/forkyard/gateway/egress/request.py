"""One request to the proxy, read strictly, and what goes to the host in its place.

A connection carries one request: either CONNECT, whose bytes afterwards are TLS, or one plain http
request. Its head is built anew, its body has a length that is held to, and whatever a client sends
after that is dropped; so no second request can hide behind the first.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from forkyard.model.hosts import plain_name

MOST_HEAD_BYTES = 16 * 1024
_MOST_FIELDS = 100
_TOKEN = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE = re.compile(rb"[\t\x20-\x7e\x80-\xff]*")
_TARGET = re.compile(rb"[\x21-\x7e]+")
_AUTHORITY = re.compile(r"([^:@/?#\[\]\\%]+)(?::([0-9]{1,5}))?", re.ASCII)
_LENGTH = re.compile(rb"[0-9]{1,18}")
_HTTP_PORT = 80
_HIGHEST_PORT = 65535
_PARTS = 3
_HOP = frozenset(
    {
        b"connection",
        b"expect",
        b"host",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"upgrade",
    }
)


class RequestError(ValueError):
    """It cannot be honoured; the message is one clause."""

    def __init__(self, words: str, *, status: int = 400, host: str = "?", port: int = 0) -> None:
        """Keep what is answered, and what was asked for as far as it is known."""
        super().__init__(words)
        self.status = status
        self.host = host
        self.port = port


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What a client asked for."""

    host: str
    port: int
    is_tunnel: bool
    """CONNECT; else one plain request."""
    head: bytes = b""
    """Of a plain request: what the host is sent instead of the client's."""
    body_bytes: int = 0


def read_request(head: bytes) -> Wanted:
    """Read a head, its empty line included.

    Raises:
        RequestError: It is not exactly what a proxy can be asked.
    """
    lines = head.split(b"\r\n")
    if lines[-2:] != [b"", b""] or any(b"\n" in line or b"\r" in line for line in lines):
        raise RequestError("the request's lines do not all end in CR LF")
    parts = lines[0].split(b" ")
    if len(parts) != _PARTS or not _TOKEN.fullmatch(parts[0]) or not _TARGET.fullmatch(parts[1]):
        raise RequestError("the request's first line cannot be read")
    method, target, version = parts
    fields = _fields(lines[1:-2])
    if method == b"CONNECT":
        if version not in (b"HTTP/1.1", b"HTTP/1.0"):
            raise RequestError("only HTTP/1.1 is spoken here", status=505)
        return _tunnel(target.decode("ascii"))
    if version != b"HTTP/1.1":
        raise RequestError("only HTTP/1.1 is spoken here", status=505)
    return _plain(method, target.decode("ascii"), fields)


def _fields(lines: list[bytes]) -> list[tuple[bytes, bytes]]:
    if len(lines) > _MOST_FIELDS:
        raise RequestError(f"the request has more than {_MOST_FIELDS} header fields", status=431)
    found = []
    for line in lines:
        name, colon, value = line.partition(b":")
        if not colon or not _TOKEN.fullmatch(name) or not _VALUE.fullmatch(value):
            raise RequestError("a header field of the request cannot be read")
        found.append((name.lower(), value.strip(b" \t")))
    return found


def _authority(text: str, port: int | None) -> tuple[str, int]:
    """Read `host:port`; nothing else that URLs allow there is let in."""
    if "@" in text:
        raise RequestError("the host has a user's name before it", status=403)
    if "[" in text or text.count(":") > 1:
        words = "is an address, and only names are let in"
        raise RequestError(f"the host {words}", status=403, host="an address")
    match = _AUTHORITY.fullmatch(text)
    if match is None or (match[2] is None and port is None):
        raise RequestError("the host and port that are asked for cannot be read")
    found = int(match[2]) if match[2] is not None else port or 0
    if not 1 <= found <= _HIGHEST_PORT:
        raise RequestError("the port that is asked for does not exist")
    try:
        return plain_name(match[1]), found
    except ValueError as error:
        shown = match[1] if match[1].isascii() and match[1].isprintable() else "?"
        words = f"the host {error}"
        raise RequestError(words, status=403, host=shown[:80], port=found) from None


def _tunnel(target: str) -> Wanted:
    host, port = _authority(target, None)
    return Wanted(host=host, port=port, is_tunnel=True)


def _plain(method: bytes, target: str, fields: list[tuple[bytes, bytes]]) -> Wanted:
    scheme, there, rest = target.partition("://")
    if not there or scheme.lower() != "http":
        raise RequestError("only http://HOST/ is asked for without CONNECT")
    cut = min((place for mark in "/?#" if (place := rest.find(mark)) >= 0), default=len(rest))
    host, port = _authority(rest[:cut], _HTTP_PORT)
    path = rest[cut:]
    if "#" in path:
        raise RequestError("the address has a fragment", host=host, port=port)
    if not path.startswith("/"):
        path = f"/{path}"
    named = [value for name, value in fields if name == b"host"]
    if len(named) != 1 or not _is_same(named[0], host, port):
        raise RequestError(
            "the Host header is not the host that is asked for", status=403, host=host, port=port
        )
    length = _length(fields, host, port)
    shown = host if port == _HTTP_PORT else f"{host}:{port}"
    dropped = _HOP | _named_by_connection(fields)
    lines = [method + b" " + path.encode() + b" HTTP/1.1", b"Host: " + shown.encode()]
    lines += [name + b": " + value for name, value in fields if name not in dropped]
    lines += [b"Connection: close", b"", b""]
    return Wanted(
        host=host, port=port, is_tunnel=False, head=b"\r\n".join(lines), body_bytes=length
    )


def _is_same(value: bytes, host: str, port: int) -> bool:
    try:
        return _authority(value.decode("latin-1"), _HTTP_PORT) == (host, port)
    except RequestError:
        return False


def _length(fields: list[tuple[bytes, bytes]], host: str, port: int) -> int:
    if any(name == b"transfer-encoding" for name, _ in fields):
        words = "a body without a length is not passed on; send a Content-Length, or use https"
        raise RequestError(words, status=411, host=host, port=port)
    lengths = [value for name, value in fields if name == b"content-length"]
    if not lengths:
        return 0
    if len(lengths) != 1 or not _LENGTH.fullmatch(lengths[0]):
        raise RequestError("the body's length cannot be read", host=host, port=port)
    return int(lengths[0])


def _named_by_connection(fields: list[tuple[bytes, bytes]]) -> frozenset[bytes]:
    values = b",".join(value for name, value in fields if name == b"connection")
    named = {one.strip().lower() for one in values.split(b",")}
    return frozenset(named - {b"content-length", b"content-type"})


def answer_head(head: bytes) -> tuple[bytes, int]:
    """Give a host's answer's head as the client gets it, and its status.

    Raises:
        RequestError: It is no HTTP answer.
    """
    lines = head.split(b"\r\n")
    parts = lines[0].split(b" ", 2)
    if not lines[0].startswith(b"HTTP/1.") or len(parts) < 2 or not parts[1].isdigit():  # noqa: PLR2004 - version and status
        raise RequestError("the host's answer is not HTTP", status=502)
    status = int(parts[1])
    kept = [
        line
        for line in lines[1:-2]
        if line.partition(b":")[0].strip().lower()
        not in (b"connection", b"keep-alive", b"proxy-connection", b"proxy-authenticate")
    ]
    last = [] if 100 <= status < 200 else [b"Connection: close"]  # noqa: PLR2004 - more is to come
    return b"\r\n".join([lines[0], *kept, *last, b"", b""]), status
