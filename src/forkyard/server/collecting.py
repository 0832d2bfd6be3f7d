"""How the coordinator's wish for a candidate reaches the collector, with the facts it records."""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from forkyard import __version__
from forkyard.agents.registry import driver_named
from forkyard.candidate.collector import Collector
from forkyard.candidate.manifest import AttemptFacts
from forkyard.coordinator.access import is_let_in, model_of
from forkyard.coordinator.interface import Told
from forkyard.model.candidate import Candidate
from forkyard.model.ids import AttemptId
from forkyard.model.run import AgentSpec
from forkyard.model.workspace import RecordedBase, Workspace
from forkyard.server.services import Isolator
from forkyard.server.spending import spent_by
from forkyard.store.journal import Journal


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptCollector:
    """Implements the coordinator's collector over the real one."""

    journal: Journal
    collector: Collector
    fleet: Isolator

    async def collect(
        self,
        attempt: AttemptId,
        workspace: Workspace,
        base: RecordedBase,
        *,
        repository: str,
        out: Path,
        scope: tuple[str, ...],
        protected: tuple[str, ...],
        told: Told,
    ) -> Candidate:
        """Collect; the same stopped workspace gives the same tree again."""
        return await self.collector.collect(
            attempt,
            workspace,
            base,
            repository=repository,
            out=out,
            scope=scope,
            protected=protected,
            facts=_with_claims(await self._facts(attempt, workspace), told),
        )

    async def _facts(self, attempt: AttemptId, workspace: Workspace) -> AttemptFacts:
        row = self.journal.state.attempts[attempt]
        run = self.journal.state.runs[row.run]
        task = run.tasks[row.task]
        agent = next((one for one in task.agents if one.name == row.agent), None)
        isolation = await self.fleet.isolation()
        return AttemptFacts(
            run=row.run,
            task=task.name,
            agent=row.agent,
            driver="" if agent is None else agent.driver,
            model="" if agent is None else model_of(agent) or "",
            versions=_versions(agent),
            usage=None
            if agent is None or not is_let_in(agent, run.limits)
            else spent_by(self.journal.state.usage_of(attempt)).model_dump(),
            prompt_sha256=hashlib.sha256(
                task.prompt.encode("utf-8", "surrogateescape")
            ).hexdigest(),
            snapshot=task.snapshot,
            limits={
                key: str(value)
                for key, value in asdict(workspace.limits).items()
                if value is not None
            },
            isolation={
                "runtime": isolation.runtime or "none",
                "digest": isolation.digest,
                **isolation.protections,
                "network": workspace.network,
                **({"allow": " ".join(workspace.allow)} if workspace.allow else {}),
            },
            environment=programs_of(workspace),
            started_at=row.started_at or "",
            ended_at=row.ended_at or "",
        )


def programs_of(workspace: Workspace) -> dict[str, str]:
    """Say whose programs a workspace's commands are."""
    environment = workspace.environment
    if environment.image is not None:
        return {"image": environment.image.reference, "image_digest": environment.image.digest}
    known = environment.host_packages
    return {"image": "host"} if known is None else {"image": "host", "host_packages": known}


LONGEST_CLAIM = 4000
"""Characters of an agent's last words in a manifest; its trajectory has them whole."""


def _versions(agent: AgentSpec | None) -> dict[str, str]:
    versions = {"forkyard": __version__}
    recipe = None if agent is None else driver_named(agent.driver).recipe
    if recipe is not None:
        versions["agent"] = recipe.version
    return versions


def _with_claims(facts: AttemptFacts, told: Told) -> AttemptFacts:
    said = told.trajectory
    claims: dict[str, object] = {"known_limitations": told.limitations or "none stated"}
    if told.claims_success is not None:
        claims["success"] = told.claims_success
    if said is not None:
        claims["version"] = said.agent_version
        claims["model"] = said.model
        claims["final_text"] = None if said.final_text is None else said.final_text[:LONGEST_CLAIM]
        claims["tokens"] = None if said.claimed_tokens is None else asdict(said.claimed_tokens)
        claims["api_error"] = said.api_error
    connections = None if told.connections is None else asdict(told.connections)
    return replace(facts, claims=claims, ending=told.ending or "", connections=connections)
