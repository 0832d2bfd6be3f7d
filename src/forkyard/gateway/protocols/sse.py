"""Server-sent events, read for the few that matter: most bytes are only looked at in bulk.

A stream brings thousands of small events, of which two or three tell usage or an end. So whole
events are searched for marks at C speed, and only those with a mark are taken apart. A mark is
searched with its quotes: inside a JSON text it would have backslashes, so what a model writes
hardly ever looks like one, and costs a little time when it does.
"""

from __future__ import annotations

import json

from forkyard.gateway.protocols.json_body import JsonObject

MOST_EVENT_BYTES = 32 * 1024 * 1024
"""Of one event: the last one of a stream may hold all that was said."""
DONE = b"[DONE]"


class EventSieve:
    """Cuts a stream into events and lets those through that bear a mark."""

    def __init__(self, *marks: bytes) -> None:
        """Start at the beginning of a stream.

        Args:
            marks: An event without any of them is skipped.
        """
        self._marks = marks
        self._tail = bytearray()
        self._ends_in_return = False
        self.is_malformed = False
        """Some event was no JSON, or larger than `MOST_EVENT_BYTES`."""

    def feed(self, chunk: bytes) -> list[bytes]:
        """Take the next bytes, cut anywhere; gives the marked events' data that are now whole."""
        if b"\r" in chunk or self._ends_in_return:
            chunk = self._plain_lines(chunk)
        if not self._tail and chunk.endswith(b"\n\n"):
            return self._sift(chunk)
        begin = max(0, len(self._tail) - 1)
        self._tail += chunk
        end = self._tail.rfind(b"\n\n", begin)
        if end < 0:
            if len(self._tail) > MOST_EVENT_BYTES:
                self.is_malformed = True
                self._tail.clear()
            return []
        whole = bytes(self._tail[: end + 2])
        del self._tail[: end + 2]
        return self._sift(whole)

    def end(self) -> list[bytes]:
        """Say that the stream is over; gives the last event where only its empty line is missing.

        A stream that was cut within an event is not malformed for that.
        """
        last, self._tail = bytes(self._tail), bytearray()
        if not any(mark in last for mark in self._marks):
            return []
        data = _data(last)
        return [data] if data == DONE or read_event(data) is not None else []

    def _plain_lines(self, chunk: bytes) -> bytes:
        """Make every line end in a line feed; a return at the end waits for what follows."""
        if self._ends_in_return:
            chunk = b"\r" + chunk
        self._ends_in_return = chunk.endswith(b"\r")
        if self._ends_in_return:
            chunk = chunk[:-1]
        return chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")

    def _sift(self, events: bytes) -> list[bytes]:
        """Search whole events.

        JSON in a stream stands on one line and ends in a brace: counting both finds an event that
        does not, without taking every event apart.
        """
        lines = events.count(b"\ndata:") + events.startswith(b"data:")
        is_plain = lines == events.count(b"}\n")
        if is_plain:
            for mark in self._marks:
                if mark in events:
                    break
            else:
                return []
            if events.count(b"\n\n") == 1:
                return [_data(events)]
        found = []
        for event in events.split(b"\n\n"):
            is_marked = any(mark in event for mark in self._marks)
            if not is_marked and is_plain:
                continue
            data = _data(event)
            if is_marked:
                found.append(data)
            if not is_plain and data and data != DONE and read_event(data) is None:
                self.is_malformed = True
        return found


def read_event(data: bytes) -> JsonObject | None:
    """Read one event's data; None: it is no JSON object."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _data(event: bytes) -> bytes:
    lines = []
    for line in event.split(b"\n"):
        if line.startswith(b"data:"):
            value = line[5:]
            lines.append(value.removeprefix(b" "))
    return b"\n".join(lines)
