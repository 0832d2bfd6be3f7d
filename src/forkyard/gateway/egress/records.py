"""What each workspace connected to, in one file of the proxy's own directory.

`WORKSPACE.jsonl` has a line when a connection begins and one when it ends, each the whole record
with its number; the last line of a number counts. So what a proxy that was killed let in is known
to the next one and to the server, which reads the file once the workspace is over. Past the limit
`WORKSPACE.counts` is written anew instead. Nothing is synced: a machine that loses power loses
its sandboxes too.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from forkyard.model.connection import (
    MOST_HOSTS,
    MOST_LISTED,
    Connection,
    ConnectionCount,
    ConnectionOutcome,
    Connections,
)
from forkyard.model.ids import WorkspaceId

OTHERS = "*"
DIED = "the proxy died"
_MOST_FILE_BYTES = 4 * 1024**2
_MOST_TEXT = 300
_Key = tuple[str, int, ConnectionOutcome]


@dataclass(slots=True, kw_only=True)
class Entry:
    """A connection under way."""

    number: int | None
    """None: it is only counted."""
    at: str
    host: str
    port: int
    address: str | None = None
    sent_bytes: int = 0
    received_bytes: int = 0


@dataclass(slots=True, kw_only=True)
class _Sum:
    count: int = 0
    sent_bytes: int = 0
    received_bytes: int = 0


@dataclass(slots=True)
class Records:
    """Those of one workspace, written by the proxy."""

    folder: Path
    workspace: WorkspaceId
    _next: int = 0
    _sums: dict[_Key, _Sum] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Go on after what an earlier proxy wrote."""
        before = read(self.folder, self.workspace)
        self._next = len(before.listed)
        for one in before.counted:
            self._sums[one.host, one.port, one.outcome] = _Sum(
                count=one.count, sent_bytes=one.sent_bytes, received_bytes=one.received_bytes
            )

    def begin(self, host: str, port: int) -> Entry:
        """Note a connection."""
        number = self._next if self._next < MOST_LISTED else None
        self._next += 1
        at = datetime.now(tz=UTC).isoformat(timespec="milliseconds")
        return Entry(number=number, at=at, host=host[:_MOST_TEXT], port=port)

    def opened(self, entry: Entry) -> None:
        """Note that it was let in, before anything is sent."""
        if entry.number is not None:
            self._write(entry.number, _connection(entry, ConnectionOutcome.OPEN, ""))

    def end(self, entry: Entry, outcome: ConnectionOutcome, reason: str = "") -> None:
        """Note how it ended."""
        if entry.number is not None:
            self._write(entry.number, _connection(entry, outcome, reason))
            return
        key = (entry.host, entry.port, outcome)
        if key not in self._sums and not self._has_room(outcome):
            key = (OTHERS, 0, outcome)
        found = self._sums.setdefault(key, _Sum())
        found.count += 1
        found.sent_bytes += entry.sent_bytes
        found.received_bytes += entry.received_bytes
        self._write_sums()

    def _has_room(self, outcome: ConnectionOutcome) -> bool:
        # Refused names can be made up without end: they must not crowd out what was let in.
        is_refused = outcome is ConnectionOutcome.REFUSED
        alike = sum((key[2] is ConnectionOutcome.REFUSED) == is_refused for key in self._sums)
        return alike < MOST_HOSTS // 2

    def _write(self, number: int, connection: Connection) -> None:
        line = json.dumps([number, asdict(connection)], separators=(",", ":")) + "\n"
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        with contextlib.suppress(OSError):  # a full disk must not end what it would record
            descriptor = os.open(self.folder / f"{self.workspace}.jsonl", flags, 0o600)
            try:
                os.write(descriptor, line.encode())
            finally:
                os.close(descriptor)

    def _write_sums(self) -> None:
        rows = [[*key, *asdict(one).values()] for key, one in self._sums.items()]
        path = self.folder / f"{self.workspace}.counts"
        new = path.with_suffix(".new")
        with contextlib.suppress(OSError):
            new.write_text(json.dumps(rows), encoding="ascii")
            new.replace(path)


def _connection(entry: Entry, outcome: ConnectionOutcome, reason: str) -> Connection:
    return Connection(
        at=entry.at,
        host=entry.host,
        port=entry.port,
        outcome=outcome,
        reason=reason[:_MOST_TEXT],
        address=entry.address,
        sent_bytes=entry.sent_bytes,
        received_bytes=entry.received_bytes,
    )


def read(folder: Path, workspace: WorkspaceId, *, is_over: bool = False) -> Connections:
    """Read a workspace's records; the server does, once the proxy has written the last one.

    Args:
        folder: The proxy's own directory, whose files are believed no more than the proxy.
        workspace: Whose.
        is_over: Nothing is open any more, whatever the file says.
    """
    listed: dict[int, Connection] = {}
    for line in _content(folder / f"{workspace}.jsonl").splitlines():
        with contextlib.suppress(ValueError, TypeError, KeyError, RecursionError):
            number, values = json.loads(line)
            if isinstance(number, int) and 0 <= number < MOST_LISTED:
                listed[number] = _read_connection(values)
    counted: list[ConnectionCount] = []
    with contextlib.suppress(ValueError, TypeError, RecursionError):
        rows = json.loads(_content(folder / f"{workspace}.counts") or b"[]")
        counted = [_read_count(*row) for row in rows[: MOST_HOSTS + len(ConnectionOutcome)]]
    found = (listed[number] for number in sorted(listed))
    return Connections(listed=tuple(_as_over(found) if is_over else found), counted=tuple(counted))


def remove(folder: Path, workspace: WorkspaceId) -> None:
    """Forget a workspace. Idempotent."""
    for kind in ("jsonl", "counts", "new"):
        with contextlib.suppress(OSError):
            (folder / f"{workspace}.{kind}").unlink()


def _as_over(found: Iterable[Connection]) -> Iterable[Connection]:
    for one in found:
        is_open = one.outcome is ConnectionOutcome.OPEN
        yield replace(one, outcome=ConnectionOutcome.CUT, reason=DIED) if is_open else one


def _content(path: Path) -> bytes:
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags)
    except OSError:
        return b""
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return b""
        return file.read(_MOST_FILE_BYTES)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError
    kept = value[:_MOST_TEXT]
    return kept if kept.isprintable() else ascii(kept)


def _number(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 62:
        raise TypeError
    return value


def _read_connection(values: dict[str, object]) -> Connection:
    address = values["address"]
    return Connection(
        at=_text(values["at"]),
        host=_text(values["host"]),
        port=_number(values["port"]),
        outcome=ConnectionOutcome(_text(values["outcome"])),
        reason=_text(values["reason"]),
        address=None if address is None else _text(address),
        sent_bytes=_number(values["sent_bytes"]),
        received_bytes=_number(values["received_bytes"]),
    )


def _read_count(
    host: object, port: object, outcome: object, count: object, sent: object, received: object
) -> ConnectionCount:
    return ConnectionCount(
        host=_text(host),
        port=_number(port),
        outcome=ConnectionOutcome(_text(outcome)),
        count=_number(count),
        sent_bytes=_number(sent),
        received_bytes=_number(received),
    )
