"""What of an answer counts as life, and for how long an exchange is borne."""

from __future__ import annotations

import asyncio

import pytest

from forkyard.gateway.passing import is_life
from forkyard.gateway.upstream import Patience


@pytest.mark.parametrize(
    ("chunk", "lives"),
    [
        (b'event: ping\ndata: {"type": "ping"}\n\n', False),
        (b"event: ping\n", False),
        (b'data: {"type":"keepalive","sequence_number":3}\n\n', False),
        (b": OPENROUTER PROCESSING\n\n", False),
        (b": OPENROUTER PROCESSING\n\ndata: {}\n\n", True),
        (b"\n \n", False),
        (b"", False),
        (b'data: {"text": "say \\"ping\\""}\n\n', True),
        (b"half of a text", True),
        (b":" + b"x" * 1000, True),
    ],
)
def test_a_chunk_is_life_when_it_tells_something(chunk: bytes, lives: bool) -> None:
    """Pings, comments and blank lines are none."""
    assert is_life(chunk) is lives


def test_patience_ends_when_nothing_but_pings_comes_or_it_takes_too_long() -> None:
    """Each look is told the time; the task that is watched is interrupted once."""

    async def interrupted(*, says: bool, at: float) -> Patience | None:
        patience = Patience(10.0, 100.0)
        patience.wait_longer(10.0, 0.0)
        begun = patience.since
        if says:
            patience.since = begun + at
        else:
            patience.pinged()
        patience.look(begun + at)
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            patience.absorb()
            return patience
        return None

    async def scene() -> None:
        assert await interrupted(says=True, at=99.0) is None
        late = await interrupted(says=True, at=101.0)
        assert late is not None
        assert late.is_late
        silent = await interrupted(says=False, at=11.0)
        assert silent is not None
        assert not silent.is_late
        assert await interrupted(says=False, at=9.0) is None

    asyncio.run(scene())
