"""How the coordinator's wish for a candidate reaches the collector, with the facts it records."""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass
from pathlib import Path

from forkyard import __version__
from forkyard.candidate.collector import Collector
from forkyard.candidate.manifest import AttemptFacts
from forkyard.model.candidate import Candidate
from forkyard.model.ids import AttemptId
from forkyard.model.workspace import RecordedBase, Workspace
from forkyard.server.services import Isolator
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
            facts=await self._facts(attempt, workspace),
        )

    async def _facts(self, attempt: AttemptId, workspace: Workspace) -> AttemptFacts:
        row = self.journal.state.attempts[attempt]
        task = self.journal.state.runs[row.run].tasks[row.task]
        agent = next((one for one in task.agents if one.name == row.agent), None)
        isolation = await self.fleet.isolation()
        return AttemptFacts(
            run=row.run,
            task=task.name,
            agent=row.agent,
            driver="" if agent is None else agent.driver,
            versions={"forkyard": __version__},
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
                "network": workspace.network,
                **isolation.protections,
            },
            started_at=row.started_at or "",
            ended_at=row.ended_at or "",
        )
