"""Who may begin when there is less room than work: pure, fair between runs, and steady.

Only what starts sandboxes needs room. What has begun keeps its place until it is over: a decision
never takes back a place, so that nothing is begun and cancelled in turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from forkyard.coordinator.commands import Command, CommandKind
from forkyard.coordinator.view import View
from forkyard.model.ids import RunId
from forkyard.model.run import AttemptState

_ORDER = {
    CommandKind.SEAL: 0,
    CommandKind.BASELINE: 1,
    CommandKind.EVALUATE: 2,
    CommandKind.PREPARE: 3,
}
"""What needs room, first things first: what others wait for, then what ends something."""

_OF_THE_RUN = frozenset({CommandKind.EVALUATE, CommandKind.PREPARE})
"""What counts against the run's own limit, too."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """A command that the state asks for, room permitting."""

    command: Command
    busy: int
    """Attempts of the same run that hold a place already."""
    limit: int = 0
    """Of the run; meaningful for what counts against it."""


def admit(wanted: Sequence[Wanted], view: View) -> list[Command]:
    """Choose what may be in flight.

    Args:
        wanted: In order of submission.
        view: Says what holds a place already.

    Returns:
        Everything that needs no room, and as much of the rest as fits.
    """
    admitted = [one.command for one in wanted if not _needs_room(one.command, view)]
    waiting = [one for one in wanted if _needs_room(one.command, view)]
    busy: dict[RunId, int] = {one.command.run: one.busy for one in wanted}
    room = view.parallel_limit - sum(busy.values())
    held = [one for one in waiting if one.command.key in view.in_flight]
    for one in held:
        room -= 1
        if one.command.kind in _OF_THE_RUN:
            busy[one.command.run] += 1
        admitted.append(one.command)
    queue = [one for one in waiting if one.command.key not in view.in_flight]
    queue.sort(key=lambda one: _ORDER[one.command.kind])
    while room > 0:
        fitting = [
            one
            for one in queue
            if one.command.kind not in _OF_THE_RUN or busy[one.command.run] < one.limit
        ]
        if not fitting:
            break
        chosen = min(fitting, key=lambda one: (_ORDER[one.command.kind], busy[one.command.run]))
        queue.remove(chosen)
        room -= 1
        if chosen.command.kind in _OF_THE_RUN:
            busy[chosen.command.run] += 1
        admitted.append(chosen.command)
    return admitted


def _needs_room(command: Command, view: View) -> bool:
    if command.kind not in _ORDER:
        return False
    if command.kind is not CommandKind.PREPARE or command.attempt is None:
        return True
    # one that is being prepared holds its place by its state
    return view.state.attempts[command.attempt].state is AttemptState.QUEUED
