"""A sandbox kept ready for the next fork: all of it but the files, made while nobody waits.

What the runtime does takes most of a fork's time and depends on no file of the workspace. So
after a start, once things are quiet, another sandbox of the same kind is made under the name of a
workspace that does not exist yet; the next one to be forked with the same limits and mounts gets
that name, and only its files have to be mounted. One spare at most: it costs a few megabytes.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, replace

from forkyard.base.clock import Clock
from forkyard.config import Layout
from forkyard.errors import ForkyardError
from forkyard.model.ids import new_workspace_id
from forkyard.model.workspace import (
    Environment,
    Limits,
    NetworkPolicy,
    Spare,
    SpareState,
    Workspace,
)
from forkyard.store.journal import Change, Journal
from forkyard.workspace.interface import Fleet, SandboxSpec
from forkyard.workspace.layers import Layers
from forkyard.workspace.slots import Slots

QUIET_SECONDS = 0.1
"""Nothing was started for this long: a spare takes no time from anybody."""
KEPT_SECONDS = 600.0
"""Who has not forked for this long can wait for the next one."""
EPOCH = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """What two workspaces have to share for one to use the other's spare."""

    environment: Environment
    limits: Limits
    network: NetworkPolicy
    allow: tuple[str, ...]
    reaches_models: bool

    @classmethod
    def of(cls, row: Workspace) -> Kind:
        """Give a workspace's."""
        environment = replace(row.environment, variables={}, host_packages=None, network=None)
        return cls(
            environment=environment,
            limits=row.limits,
            network=row.network,
            allow=row.allow,
            reaches_models=row.reaches_models,
        )


class Spares:
    """The spare of one state directory; the only one to change spares' rows."""

    def __init__(
        self,
        journal: Journal,
        fleet: Fleet,
        layers: Layers,
        layout: Layout,
        slots: Slots,
        clock: Clock,
    ) -> None:
        """Know of none; what an earlier server left is `recover`'s."""
        self._journal = journal
        self._fleet = fleet
        self._layers = layers
        self._layout = layout
        self._slots = slots
        self._clock = clock
        self._ready: tuple[Kind, Spare] | None = None
        self._keeping: asyncio.Task[None] | None = None
        self._making: asyncio.Task[None] | None = None

    def take(self, kind: Kind) -> Spare | None:
        """Give the spare where it fits; `taken` has to be journalled with its workspace's row."""
        if self._ready is None or self._ready[0] != kind:
            return None
        (_, spare), self._ready = self._ready, None
        self._wait_no_longer()
        return spare

    @staticmethod
    def taken(spare: Spare) -> Change:
        """Say that it is a workspace now."""
        return Change(entity=replace(spare, state=SpareState.OVER), note="taken", expect=spare)

    def wish(self, spec: SandboxSpec, kind: Kind) -> None:
        """Have one of this kind made soon; wishes that come meanwhile put it off."""
        if self._making is None:
            self._wait_no_longer()
            self._keeping = asyncio.create_task(self._keep(spec, kind))

    def _wait_no_longer(self) -> None:
        if self._keeping is not None and self._making is None:
            self._keeping.cancel()
            self._keeping = None

    async def _keep(self, like: SandboxSpec, kind: Kind) -> None:
        await asyncio.sleep(QUIET_SECONDS)
        self._making = asyncio.create_task(self._make_instead(like, kind))
        await asyncio.shield(self._making)
        self._making = None
        await asyncio.sleep(KEPT_SECONDS)
        await self._drop()

    async def _make_instead(self, like: SandboxSpec, kind: Kind) -> None:
        if self._ready is None or self._ready[0] != kind:
            await self._drop()
            await self._make(like, kind)

    async def _make(self, like: SandboxSpec, kind: Kind) -> None:
        spare = Spare(
            id=new_workspace_id(),
            slot=self._slots.take(),
            state=SpareState.WAITING,
            created_at=self._clock.now(),
        )
        with contextlib.suppress(ForkyardError, OSError):  # the next fork makes its own
            await self._journal.append(spare, "made ahead", expect=None)
            try:
                self._layers.make_disk(spare.id)
                await self._fleet.prepare(
                    replace(like, workspace=spare.id, epoch=EPOCH, layers=(), slot=spare.slot)
                )
            except BaseException:
                await self._remove(spare)
                raise
            self._ready = (kind, spare)

    async def _drop(self) -> None:
        if self._ready is not None:
            (_, spare), self._ready = self._ready, None
            with contextlib.suppress(ForkyardError):
                await self._remove(spare)

    async def _remove(self, spare: Spare) -> None:
        await self._fleet.stop(spare.id, epoch=EPOCH)
        await asyncio.to_thread(self._layers.discard, self._layout.workspace(spare.id))
        await self._journal.append(replace(spare, state=SpareState.OVER), "removed", expect=spare)
        self._slots.release(spare.slot)

    async def recover(self) -> None:
        """Remove what an earlier server kept ready: nothing is in it."""
        for spare in list(self._journal.state.spares.values()):
            await self._remove(spare)

    async def close(self) -> None:
        """Remove the spare; a sandbox that nobody can use is not left to the next server."""
        making, keeping = self._making, self._keeping
        if keeping is not None:
            keeping.cancel()
        if making is not None:
            await making  # as long as one sandbox takes to start
        await self._drop()
