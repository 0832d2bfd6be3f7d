"""One provider's pace: limits, the shared back-off, and whose turn it is."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forkyard.gateway.pace import MOST_SECONDS, PATIENCE_SECONDS, Pace, stated_seconds
from forkyard.model.ids import AttemptId

WALL = datetime(2026, 11, 30, 12, 0, 0, tzinfo=UTC)
A, B, C = AttemptId("att_a"), AttemptId("att_b"), AttemptId("att_c")


def pace(
    *, concurrent: int | None = None, per_minute: int | None = None, jitter: float = 1.0
) -> Pace:
    """Make a pace whose jitter is fixed."""
    return Pace(concurrent=concurrent, per_minute=per_minute, random=lambda: jitter)


def fill(line: Pace, attempt: AttemptId, *keys: int) -> None:
    """Put requests into an attempt's line."""
    for key in keys:
        line.enqueue(key, attempt)


def test_turns_go_round_when_attempts_wait_for_slots() -> None:
    """An attempt with many requests does not keep the others waiting."""
    line = pace(concurrent=1)
    fill(line, A, 1, 2, 3)
    fill(line, B, 11)
    fill(line, C, 21, 22)
    served = []
    while (key := line.start_next(0.0)) is not None:
        served.append(key)
        line.finish(key)

    assert served == [1, 11, 21, 2, 22, 3]


def test_turn_goes_to_who_holds_fewest_when_a_slot_gets_free() -> None:
    """Fair shares are of what is held, not only of what is asked."""
    line = pace(concurrent=3)
    fill(line, A, 1, 2, 3, 4, 5)
    assert [line.start_next(0.0) for _ in range(4)] == [1, 2, 3, None]
    fill(line, B, 11)
    assert line.positions() == {B: 1, A: 2}
    line.finish(1)

    assert line.start_next(0.0) == 11


def test_nobody_starts_while_the_minute_is_full() -> None:
    """The oldest start of the last minute has to pass out of it first."""
    line = pace(per_minute=2)
    fill(line, A, 1, 2, 3)
    assert [line.start_next(0.0), line.start_next(10.0)] == [1, 2]
    line.finish(1)

    assert line.start_next(59.9) is None
    assert line.next_start(59.0) == pytest.approx(1.0)
    assert line.start_next(60.0) == 3


def test_everyone_backs_off_as_long_as_the_provider_says() -> None:
    """A stated time is kept to, by all attempts."""
    line = pace()
    fill(line, A, 1)
    fill(line, B, 11)
    assert line.start_next(0.0) == 1
    line.throttled(0.0, 7.0)
    line.finish(1)

    assert line.start_next(6.9) is None
    assert line.next_start(5.0) == pytest.approx(2.0)
    assert line.retry_after(0.5) == 7
    assert line.start_next(7.0) == 11


def test_back_off_doubles_to_a_cap_when_nothing_is_stated() -> None:
    """Each new event waits twice as long, with jitter between half and all of it."""
    for jitter, share in ((1.0, 1.0), (0.0, 0.5)):
        line = pace(jitter=jitter)
        now, delays = 0.0, []
        for _ in range(10):
            line.throttled(now, None)
            delays.append(line.back_off_until - now)
            now = line.back_off_until

        assert delays[:4] == [share, 2 * share, 4 * share, 8 * share]
        assert delays[-1] == MOST_SECONDS * share


def test_many_refusals_at_once_are_one_event() -> None:
    """Requests that were under way when the back-off began do not make it longer."""
    line = pace()
    line.throttled(0.0, None)
    until = line.back_off_until
    for _ in range(20):
        line.throttled(0.0, None)

    assert line.back_off_until == until


def test_half_go_at_once_after_a_back_off_and_each_answer_adds_one() -> None:
    """The whole fan-out does not fall upon a provider that has just asked for patience."""
    line = pace()
    fill(line, A, *range(20))
    for _ in range(8):
        line.start_next(0.0)
    line.throttled(0.0, 1.0)
    for key in range(8):
        line.finish(key)
    started = [line.start_next(1.0) for _ in range(6)]
    assert started == [8, 9, 10, 11, None, None]
    line.answered()

    assert line.start_next(1.0) == 12


def test_patience_ends_when_nothing_but_refusals_came_for_long() -> None:
    """Trouble is hidden for a bounded time, then agents are told."""
    line = pace()
    now = 0.0
    for _ in range(4):
        line.throttled(now, None)
        assert not line.is_patience_over(now)
        now = line.back_off_until
    line.throttled(now, None)

    assert line.is_patience_over(now)
    assert line.back_off_until > PATIENCE_SECONDS
    line.answered()
    assert not line.is_patience_over(now)


def test_patience_covers_a_stated_minute_once() -> None:
    """Limits counted by the minute are waited out; a second one in a row is passed on."""
    line = pace()
    line.throttled(0.0, 60.0)
    assert not line.is_patience_over(0.0)
    line.throttled(60.0, 60.0)

    assert line.is_patience_over(60.0)


def test_patience_is_over_at_once_when_the_stated_time_is_long() -> None:
    """An hour is the agent's to wait or not, and the provider is asked again sooner."""
    line = pace()
    line.throttled(0.0, 3600.0)

    assert line.is_patience_over(0.0)
    assert line.back_off_until == 300.0


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        (None, None),
        ("", None),
        ("7", 7.0),
        (" 1.5 ", 1.5),
        ("0", None),
        ("-3", None),
        ("soon", None),
        ("1e9", None),
        ("9" * 40, None),
        ("Mon, 30 Nov 2026 12:00:09 GMT", 9.0),
        ("Mon, 30 Nov 2026 12:00:09 -0000", 9.0),
        ("Mon, 30 Nov 2026 11:59:00 GMT", None),
        ("Mon, 99 Nov 2026 12:00:09 GMT", None),
        ("\x00\xff", None),
    ],
)
def test_stated_time_is_read_in_both_forms(header: str | None, seconds: float | None) -> None:
    """Seconds and dates count; what is malformed or past says nothing."""
    assert stated_seconds(header, WALL) == seconds


@given(header=st.text(max_size=60))
def test_stated_time_never_raises_whatever_the_header_is(header: str) -> None:
    """A provider's header is not ours to trust."""
    assert (stated_seconds(header, WALL) or 1.0) > 0


class Scene:
    """A line, the time, and what a model of it says must be true."""

    def __init__(self, concurrent: int | None, per_minute: int | None) -> None:
        self.line = pace(concurrent=concurrent, per_minute=per_minute, jitter=0.5)
        self.now = 0.0
        self.keys = 0
        self.waiting: dict[int, AttemptId] = {}
        self.held: list[int] = []
        self.starts: list[float] = []

    def serve(self) -> None:
        """Start whoever may, and check the limits."""
        while (key := self.line.start_next(self.now)) is not None:
            del self.waiting[key]
            self.held.append(key)
            self.starts.append(self.now)
        concurrent, per_minute = self.line.concurrent, self.line.per_minute
        assert concurrent is None or self.line.in_flight <= concurrent
        recent = [start for start in self.starts if start > self.now - 60.0]
        assert per_minute is None or len(recent) <= per_minute

    def step(self, what: str, which: int, amount: float) -> None:
        """Let one thing happen."""
        match what:
            case "ask":
                self.keys += 1
                attempt = (A, B, C, AttemptId("att_d"))[which]
                self.waiting[self.keys] = attempt
                self.line.enqueue(self.keys, attempt)
            case "drop" if self.waiting:
                key = sorted(self.waiting)[which % len(self.waiting)]
                self.line.drop(key, self.waiting.pop(key))
            case "finish" if self.held:
                self.line.finish(self.held.pop(which % len(self.held)))
            case "throttle":
                self.line.throttled(self.now, amount or None)
            case "answer":
                self.line.answered()
            case _:
                self.now += amount
        self.serve()

    def drain(self) -> None:
        """End every turn and let time pass, as long as that serves somebody."""
        for _ in range(2 * self.keys + 200):
            while self.held:
                self.line.finish(self.held.pop())
            if not self.waiting:
                return
            wait = self.line.next_start(self.now)
            assert wait is not None
            self.now += wait + 0.001
            self.serve()


@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from(["ask", "drop", "finish", "throttle", "answer", "wait"]),
            st.integers(0, 3),
            st.just(0.0) | st.floats(0, 100),
        ),
        max_size=80,
    ),
    concurrent=st.none() | st.integers(1, 4),
    per_minute=st.none() | st.integers(1, 6),
)
def test_line_always_moves_on(
    steps: list[tuple[str, int, float]], concurrent: int | None, per_minute: int | None
) -> None:
    """Limits hold at every step, and once all turns end everyone is served."""
    scene = Scene(concurrent, per_minute)
    for step in steps:
        scene.step(*step)
    scene.drain()

    assert not scene.waiting
