"""What the meters share: bytes become events or one body; hostile numbers become nothing."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from typing import ClassVar

from forkyard.gateway.interface import Finish
from forkyard.gateway.protocols.interface import Reading
from forkyard.gateway.protocols.json_body import JsonObject
from forkyard.gateway.protocols.sse import DONE, EventSieve, read_event
from forkyard.model.budget import TokenCounts

MOST_WHOLE_BYTES = 64 * 1024 * 1024
"""Of an answer that is no stream."""
_MOST_TOKENS = 10**10


class Meter(ABC):
    """Reads one answer; the API's own part takes the events."""

    marks: ClassVar[tuple[bytes, ...]]
    """An event without any of these tells nothing of usage or of an end."""
    finishes: ClassVar[Mapping[str, Finish]]
    """What the API's words for an end mean; any other is `Finish.OTHER`."""

    def __init__(self, *, is_event_stream: bool) -> None:
        """Start at the beginning of an answer."""
        self._sieve = EventSieve(*self.marks) if is_event_stream else None
        self._whole = bytearray()
        self._is_broken = False
        self.has_ended = False
        self.error: str | None = None
        self.finish = Finish.UNKNOWN

    def feed(self, chunk: bytes) -> None:
        """Take the next decoded bytes, cut anywhere."""
        if self._sieve is None:
            self._keep(chunk)
            return
        for data in self._sieve.feed(chunk):
            self.take_data(data)

    def end(self) -> None:
        """Say that no more bytes come, for whatever reason."""
        if self._sieve is not None:
            for data in self._sieve.end():
                self.take_data(data)
        elif self._whole:
            whole = bytes(self._whole)
            self._whole.clear()
            event = read_event(whole)
            if event is None:
                self._is_broken = True
            else:
                self.take(event)

    def take_data(self, data: bytes) -> None:
        """Take one marked event's data."""
        if data == DONE:
            self.take_done()
            return
        event = read_event(data)
        if event is None:
            self._is_broken = True
        else:
            self.take(event)

    def take_done(self) -> None:
        """Meet the mark that ends some APIs' streams."""
        self.has_ended = True

    def finished(self, word: object) -> None:
        """Take note of why the model stopped writing; what is no text says nothing."""
        if isinstance(word, str):
            self.finish = self.finishes.get(word, Finish.OTHER)

    @abstractmethod
    def take(self, event: JsonObject) -> None:
        """Take one event, or a whole answer."""

    @abstractmethod
    def reading(self) -> Reading:
        """Give what is known so far."""

    def state(self, tokens: TokenCounts, *, is_input_known: bool, is_final: bool) -> Reading:
        """Put counts together with what every meter knows."""
        return Reading(
            tokens=tokens,
            is_input_known=is_input_known,
            is_final=is_final,
            has_ended=self.has_ended,
            error=self.error,
            finish=self.finish,
            is_malformed=self._is_broken or (self._sieve is not None and self._sieve.is_malformed),
        )

    def _keep(self, chunk: bytes) -> None:
        if len(self._whole) + len(chunk) > MOST_WHOLE_BYTES:
            self._is_broken = True
            self._whole.clear()
        elif not self._is_broken:
            self._whole += chunk


def count(value: object) -> int | None:
    """Read a number of tokens; None where there is none that could be one."""
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MOST_TOKENS:
        return value
    return None


def error_name(known: Collection[str], value: object) -> str:
    """Name a provider's error by a word that we know, else `other`."""
    return value if isinstance(value, str) and value in known else "other"
