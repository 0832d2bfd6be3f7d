"""Pairs of times, taken in turn, and what is told of them."""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass

Timed = Callable[[], Awaitable[float]]
REST_SECONDS = 0.5
"""Before each timing of a row that begins from rest, on both sides: what the one before left to be
done is done by then, and what a tool makes ready while nobody waits is ready."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One row: medians of both sides, and the median of the ratios of the pairs."""

    name: str
    ours: float
    theirs: float
    ratio: float
    runs: int
    unit: str
    target: str
    """What the ratio must be, such as ``>= 8``."""
    met: bool


async def in_pairs(
    name: str,
    ours: Timed,
    theirs: Timed,
    *,
    pairs: int,
    at_least: float | None = None,
    at_most: float | None = None,
    is_rested: bool = False,
) -> Figure:
    """Take so many pairs, one of each in turn, after one of each for nothing.

    For speed (`at_least`) a pair's ratio is theirs by ours. For growth (`at_most`) ours is the
    small case, theirs the large one, and the ratio is large by small.
    """

    async def rested(timed: Timed) -> float:
        if is_rested:
            await asyncio.sleep(REST_SECONDS)
        return await timed()

    await ours()
    await theirs()
    times = []
    for number in range(pairs):
        print(f"bench: {name} {number + 1}/{pairs}", file=sys.stderr, flush=True)
        if number % 2:  # whoever is second finds the caches of the first
            other = await rested(theirs)
            times.append((await rested(ours), other))
        else:
            times.append((await rested(ours), await rested(theirs)))
    ratio = statistics.median(b / a for a, b in times)
    if at_least is not None:
        target, met = f">= {at_least:g}", ratio >= at_least
    else:
        limit = at_most if at_most is not None else float("inf")
        target, met = f"<= {limit:g}", ratio <= limit
    return Figure(
        name=name,
        ours=round(statistics.median(a for a, _ in times) * 1000, 2),
        theirs=round(statistics.median(b for _, b in times) * 1000, 2),
        ratio=round(ratio, 2),
        runs=pairs,
        unit="ms",
        target=target,
        met=met,
    )


def tell(figure: Figure, *, as_json: bool) -> None:
    """Print one row: one JSON object per line, or a line for a person."""
    if as_json:
        print(json.dumps(asdict(figure)), flush=True)
        return
    verdict = "ok  " if figure.met else "MISS"
    print(
        f"{verdict} {figure.name:42} {figure.ours:10.1f} {figure.theirs:10.1f} {figure.unit}"
        f"   ratio {figure.ratio:7.2f}  ({figure.target}, {figure.runs} pairs)",
        flush=True,
    )
