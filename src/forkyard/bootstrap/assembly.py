"""Which concrete part is used where, all over one open journal."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from forkyard.base.clock import Clock
from forkyard.base.masking import Masker
from forkyard.candidate.collector import Collector
from forkyard.candidate.pruning import Pruner
from forkyard.config import (
    Layout,
    network_settings,
    registry_settings,
    search_path,
)
from forkyard.coordinator.coordinator import Coordinator
from forkyard.coordinator.garbage import Garbage, Removed
from forkyard.coordinator.own_access import OwnAccess
from forkyard.errors import ForkyardError, NotFoundError
from forkyard.evaluation.evaluator import Evaluator
from forkyard.evaluation.ranking import rank
from forkyard.gateway.egress.supervisor import EgressSupervisor
from forkyard.gateway.interface import Gateway, RunStatus
from forkyard.gateway.supervisor import Supervisor
from forkyard.model.ids import RunId
from forkyard.model.provider import GatewaySettings
from forkyard.model.run import Attempt, Run
from forkyard.model.workspace import ReadOnlyMount, Workspace
from forkyard.promotion.apply import Applications
from forkyard.promotion.contents import StoredContents
from forkyard.server.access import ModelAccess, read_settings
from forkyard.server.building import TemplateBuilds
from forkyard.server.candidates import Candidates
from forkyard.server.collecting import AttemptCollector
from forkyard.server.lifetimes import Lifetimes
from forkyard.server.presence import Presence
from forkyard.server.secrets import SecretKeeper
from forkyard.server.services import Services
from forkyard.server.sessions import Sessions, is_a_persons
from forkyard.server.submission import Submission
from forkyard.shim import cgroups
from forkyard.shim.hierarchies import detect
from forkyard.store.blobs import Blobs
from forkyard.store.journal import Journal
from forkyard.store.reserve import Reserve
from forkyard.store.secrets import Secrets
from forkyard.wire.taskfile import RunRequest
from forkyard.workspace.agent_folders import sweep
from forkyard.workspace.agent_install import Agents, recipe_of
from forkyard.workspace.egress import has_allowlist_up
from forkyard.workspace.fleet import LocalFleet
from forkyard.workspace.images import SEARCH_PATH, Images
from forkyard.workspace.snapshots import Snapshots
from forkyard.workspace.templates import Templates
from forkyard.workspace.workspaces import Workspaces

RESERVE_SECONDS = 60.0
"""Between two looks whether the room for the journal that was given up can be kept again."""

STREAMS = ("stdout", "stderr")


@dataclass(slots=True, kw_only=True)
class _Runs:
    """Submission and coordinator as one service."""

    submission: Submission
    coordinator: Coordinator
    gateway: Gateway

    async def submit(
        self, request: RunRequest, *, is_wanted: Callable[[], Awaitable[bool]] | None = None
    ) -> Run:
        return await self.submission.submit(request, is_wanted=is_wanted)

    async def cancel(self, run: RunId) -> Run:
        return await self.coordinator.cancel(run)

    async def retry(self, run: RunId) -> Run:
        return await self.coordinator.retry(run)

    async def regrade(self, run: RunId) -> Run:
        return await self.coordinator.regrade(run)

    def log(self, attempt: Attempt, stream: str) -> Path:
        return self.coordinator.logs(attempt.id)[STREAMS.index(stream)]

    def live(self, run: RunId) -> RunStatus | None:
        return self.gateway.status(run)

    async def copy_usage(self) -> None:
        # what is over was copied when it was closed; nothing is started to look again
        if self.coordinator.active and self.coordinator.usage is not None:
            with contextlib.suppress(ForkyardError):
                await self.coordinator.usage.copy()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Installer:
    """What attempts are shown of installed agents; one that is missing is installed."""

    agents: Agents

    def is_installed(self, driver: str) -> bool:
        return recipe_of(driver) is None or self.agents.find(driver) is not None

    async def mounts(self, driver: str) -> tuple[ReadOnlyMount, ...]:
        if recipe_of(driver) is None:
            return ()
        installed = await self.agents.install(driver)
        return (installed.mount,)


@dataclass(slots=True, kw_only=True)
class _Maintenance:
    """What `forkyard gc` does now and the server once a day."""

    garbage: Garbage

    async def collect_garbage(
        self, *, older_than_seconds: float | None, is_dry: bool
    ) -> tuple[Removed, ...]:
        if older_than_seconds is None:
            return await self.garbage.collect(is_dry=is_dry)
        return await self.garbage.collect(older_than_seconds=older_than_seconds, is_dry=is_dry)


@asynccontextmanager
async def assemble(
    layout: Layout,
    clock: Clock,
    *,
    journal: Journal,
    stopping: asyncio.Event,
    masker: Masker | None = None,
) -> AsyncIterator[Services]:
    """Wire everything over an open journal, recover, and start working.

    Yields:
        What the server needs; on exit work stops and sandboxes go on.
    """
    masker = masker or Masker()
    kept = Secrets(layout.secrets, clock)

    def settings() -> GatewaySettings:
        return read_settings(layout.gateway_settings)

    def provider_names() -> tuple[str, ...]:
        return tuple(one.name for one in settings().providers)

    gateway = Supervisor(layout, settings=settings, secrets=lambda name: _value(kept, name))
    secrets = SecretKeeper(kept, masker, on_change=gateway.settings_changed)
    await secrets.load()
    fleet = LocalFleet(layout)
    collector = Collector(layout, clock, masker=masker)
    blobs = Blobs(layout.blobs)
    egress = EgressSupervisor(layout, lambda: has_allowlist_up(journal.state.workspaces.values()))
    workspaces = Workspaces(journal, fleet, layout, clock, providers=provider_names, egress=egress)
    snapshots = Snapshots(workspaces, collector, clock)
    images = Images(
        workspaces,
        clock,
        secret=lambda name: _value(kept, name),
        variables=network_settings(),
        search_path=f"{search_path()}:{SEARCH_PATH}",
    )
    templates = Templates(snapshots, clock, masker, images, secret=lambda name: _value(kept, name))
    evaluator = Evaluator(workspaces, collector, layout, clock, masker)
    applications = Applications(
        journal=journal,
        contents=StoredContents(collector.store),
        workspaces=workspaces,
        layout=layout,
        clock=clock,
    )
    sweep(layout)
    agents = Agents(layout, search_path=search_path(), variables=registry_settings())
    coordinator = Coordinator(
        journal=journal,
        workspaces=workspaces,
        snapshots=snapshots,
        agents=_Installer(agents=agents),
        gateway=gateway,
        collector=AttemptCollector(journal=journal, collector=collector, fleet=fleet),
        evaluator=evaluator,
        rank=rank,
        fleet=fleet,
        layout=layout,
        clock=clock,
        masker=masker,
    )
    access = ModelAccess(settings=settings, secrets=lambda: {one.name for one in kept.list()})
    submission = Submission(
        journal=journal,
        templates=templates,
        blobs=blobs,
        queue=coordinator,
        access=access,
    )
    await workspaces.recover()
    await snapshots.recover()
    await templates.recover()
    await applications.recover()
    await gateway.start()
    await egress.start()
    await coordinator.start()
    presence = Presence()
    lifetimes = Lifetimes(
        journal=journal,
        workspaces=workspaces,
        presence=presence,
        clock=clock,
        cpu_seconds=_cpu_seconds,
    )
    sessions = Sessions(journal=journal, workspaces=workspaces, clock=clock)
    own_access = OwnAccess(
        journal=journal, gateway=gateway, usage=coordinator.usage, is_a_persons=is_a_persons
    )
    garbage = Garbage(
        journal=journal,
        layout=layout,
        clock=clock,
        snapshots=snapshots,
        templates=templates,
        images=images,
        pruner=Pruner(collector.store),
        reaper=coordinator.reaper,
        usage=coordinator.usage,
        building=submission.one_at_a_time,
    )
    watching = [
        asyncio.create_task(sessions.run(), name="sessions"),
        asyncio.create_task(lifetimes.run(), name="lifetimes"),
        asyncio.create_task(own_access.run(), name="own access"),
        asyncio.create_task(garbage.run(), name="garbage"),
        asyncio.create_task(_tend(Reserve(layout.reserve)), name="reserve"),
    ]
    try:
        yield Services(
            layout=layout,
            clock=clock,
            journal=journal,
            fleet=fleet,
            workspaces=workspaces,
            snapshots=snapshots,
            templates=TemplateBuilds(templates),
            runs=_Runs(submission=submission, coordinator=coordinator, gateway=gateway),
            candidates=Candidates(
                journal=journal,
                layout=layout,
                workspaces=workspaces,
                collector=collector,
                applications=applications,
            ),
            maintenance=_Maintenance(garbage=garbage),
            sessions=sessions,
            access=access,
            agents=agents,
            secrets=secrets,
            presence=presence,
            lifetimes=lifetimes,
            masker=masker,
            started_at=clock.now(),
            stopping=stopping,
        )
    finally:
        for task in watching:
            task.cancel()
        await coordinator.close()
        await gateway.close()
        await workspaces.close()
        await egress.close()
        await fleet.close()


async def _tend(reserve: Reserve) -> None:
    """Keep room for the journal again once there is some."""
    while True:
        await asyncio.sleep(RESERVE_SECONDS)
        await asyncio.to_thread(reserve.keep)


def _cpu_seconds(workspace: Workspace) -> float | None:
    hierarchies = detect()
    name = f"{workspace.id}-{workspace.epoch}"
    return None if hierarchies is None else cgroups.cpu_seconds(hierarchies, name)


def _value(secrets: Secrets, name: str) -> str | None:
    try:
        return secrets.get(name)
    except NotFoundError:
        return None
