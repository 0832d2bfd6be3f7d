"""When a provider may be asked again, and whose turn it is: pure, and handed the time.

A provider that asks for patience asks all of us: there is one back-off, after which half as many
go at once as before; each answer then lets one more go beside them.
Turns go to the attempt that holds the fewest, and among those round and round.
"""

from __future__ import annotations

import math
import re
from collections import Counter, deque
from collections.abc import Callable
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from forkyard.model.ids import AttemptId

BASE_SECONDS = 1.0
"""First back-off where the provider names none; doubles from one to the next."""
MOST_SECONDS = 20.0
"""Of a back-off that we choose ourselves: with a client's own retries after it, nobody waits for a
provider that says nothing else for more than two minutes."""
MOST_STATED_SECONDS = 300.0
"""Of one that the provider names: after this it is asked again, whatever it said."""
PATIENCE_SECONDS = 30.0
"""How long nothing but requests for patience is hidden from agents."""
STATED_PATIENCE_SECONDS = 60.0
"""The same where the provider names when to come back: limits are often counted by the minute."""
REQUEST_PATIENCE_SECONDS = 90.0
"""How long one request is tried again and again, whatever others get."""
MINUTE = 60.0

_SECONDS = re.compile(r"[0-9]{1,9}(\.[0-9]{1,6})?")


class Pace:
    """The state of one provider's line; every method that needs the time is given it."""

    def __init__(
        self, *, concurrent: int | None, per_minute: int | None, random: Callable[[], float]
    ) -> None:
        """Take the limits, None for none, and a source of numbers from 0 to 1."""
        self.concurrent = concurrent
        self.per_minute = per_minute
        self._random = random
        self._lines: dict[AttemptId, deque[int]] = {}
        """In the order of whose turn it is; no line is empty."""
        self._held: dict[int, AttemptId] = {}
        self._holds: Counter[AttemptId] = Counter()
        self._starts: deque[float] = deque()
        self._window = math.inf
        self._failures = 0
        self._until = -math.inf
        self._trouble_since: float | None = None
        self._patience = PATIENCE_SECONDS

    @property
    def in_flight(self) -> int:
        """Count the turns that are held."""
        return len(self._held)

    @property
    def back_off_until(self) -> float:
        """Say when the shared back-off ends or ended."""
        return self._until

    def enqueue(self, key: int, attempt: AttemptId) -> None:
        """Put a request at the end of its attempt's line."""
        self._lines.setdefault(attempt, deque()).append(key)

    def drop(self, key: int, attempt: AttemptId) -> None:
        """Take a request out of the line; one that is not there is fine."""
        line = self._lines.get(attempt)
        if line is not None and key in line:
            line.remove(key)
            if not line:
                del self._lines[attempt]

    def start_next(self, now: float) -> int | None:
        """Give the request whose turn it is, which then holds it; None: none may start now."""
        if not self._lines or self._wait(now) > 0:
            return None
        attempt = self._order()[0]
        line = self._lines.pop(attempt)
        key = line.popleft()
        if line:
            self._lines[attempt] = line
        self._held[key] = attempt
        self._holds[attempt] += 1
        self._starts.append(now)
        return key

    def next_start(self, now: float) -> float | None:
        """Give the seconds until one may start; None: no line, or only a turn's end helps."""
        wait = self._wait(now)
        return None if not self._lines or wait == math.inf else wait

    def finish(self, key: int) -> None:
        """Take a turn back; one that is not held is fine."""
        attempt = self._held.pop(key, None)
        if attempt is not None:
            self._holds[attempt] -= 1
            if not self._holds[attempt]:
                del self._holds[attempt]

    def throttled(self, now: float, stated: float | None) -> None:
        """Back off: as long as the provider stated, else longer each time, with jitter."""
        if self._trouble_since is None:
            self._trouble_since = now
            self._patience = PATIENCE_SECONDS
        if now >= self._until:
            # what was sent before the back-off began and fails during it is the same event
            self._failures += 1
            self._window = max(1.0, min(self._window, self.in_flight) / 2)
        if stated is None:
            delay = min(MOST_SECONDS, BASE_SECONDS * 2.0 ** min(self._failures - 1, 16))
            self._until = max(self._until, now + delay * (0.5 + self._random() / 2))
        else:
            self._until = max(self._until, now + min(stated, MOST_STATED_SECONDS))
            if stated <= STATED_PATIENCE_SECONDS:
                self._patience = max(self._patience, stated)

    def answered(self) -> None:
        """Take note of any other answer: trouble is over, one more may go beside the others."""
        self._failures = 0
        self._trouble_since = None
        self._window += 1

    def is_patience_over(self, now: float) -> bool:
        """Say whether agents are to be told: trouble will have lasted too long when it ends."""
        if self._trouble_since is None:
            return False
        return max(now, self._until) - self._trouble_since > self._patience

    def retry_after(self, now: float) -> int:
        """Give whole seconds to tell an agent: until the back-off ends, at least 1."""
        return max(1, math.ceil(self._until - now))

    def positions(self) -> dict[AttemptId, int]:
        """Give each waiting attempt's place in line; 1 is next."""
        return {attempt: place for place, attempt in enumerate(self._order(), start=1)}

    def waiting(self, attempt: AttemptId) -> int:
        """Count an attempt's requests in line."""
        return len(self._lines.get(attempt, ()))

    def _order(self) -> list[AttemptId]:
        return sorted(self._lines, key=lambda attempt: self._holds[attempt])

    def _wait(self, now: float) -> float:
        most = min(self._window, math.inf if self.concurrent is None else max(1, self.concurrent))
        if self.in_flight >= most:
            return math.inf
        wait = max(0.0, self._until - now)
        if self.per_minute is not None:
            while self._starts and self._starts[0] <= now - MINUTE:
                self._starts.popleft()
            if len(self._starts) >= max(1, self.per_minute):
                oldest = self._starts[-max(1, self.per_minute)]
                wait = max(wait, oldest + MINUTE - now)
        else:
            self._starts.clear()
        return wait


def stated_seconds(header: str | None, wall: datetime) -> float | None:
    """Read a Retry-After header: seconds, or an HTTP date.

    Args:
        header: Its value; None where there was none.
        wall: Wall time now, with its zone.

    Returns:
        None where it says nothing usable: absent, malformed, or not in the future.
    """
    if header is None:
        return None
    text = header.strip()
    if _SECONDS.fullmatch(text):
        seconds = float(text)
    else:
        try:
            moment = parsedate_to_datetime(text)
        except (ValueError, TypeError, OverflowError):
            return None
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        seconds = (moment - wall).total_seconds()
    return seconds if seconds > 0 else None
