"""What an agent left: its candidate, its bill, its story, and whose trouble kept it from more."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace

from forkyard.agents.registry import driver_named
from forkyard.base.durable import failpoint
from forkyard.config import Layout
from forkyard.coordinator.access import is_let_in
from forkyard.coordinator.commands import Command
from forkyard.coordinator.ending import agent_of
from forkyard.coordinator.failure import Evidence, Finding, failure_of
from forkyard.coordinator.interface import CollectorPort, Told, WorkspacesPort
from forkyard.coordinator.logs import log_files
from forkyard.coordinator.metering import Account, Metering
from forkyard.coordinator.rows import Rows, names_of
from forkyard.coordinator.story import Story, keep_story, read_story
from forkyard.errors import WorkspaceError
from forkyard.model.candidate import Candidate
from forkyard.model.run import Attempt, AttemptState, Failure, Run, Task
from forkyard.store.journal import Change

_MAY_BE_EXHAUSTED = frozenset({AttemptState.FINISHED, AttemptState.TIMED_OUT})
_UNJUDGED = frozenset({AttemptState.CANCELLED, AttemptState.INTERRUPTED})


@dataclass(slots=True, kw_only=True)
class CollectStep:
    """See the module."""

    rows: Rows
    workspaces: WorkspacesPort
    collector: CollectorPort
    metering: Metering
    layout: Layout
    mask: Callable[[bytes], bytes]

    async def collect(self, command: Command) -> None:
        """Close the account, stop the sandbox, take the candidate out of the dead workspace."""
        attempt, run, task, _ = self.rows.about(command)
        _, workspace_id = names_of(attempt)
        # first, while its sockets are there: what is left of it can spend nothing any more
        account = await self.metering.close(attempt, run, agent_of(task, attempt))
        failpoint("C21")
        workspace = await self.workspaces.stop(workspace_id)
        failpoint("C12")
        connections = await self.workspaces.connections(workspace_id)
        base = self.rows.snapshot(task).base
        if base is None:
            msg = f"cannot collect {attempt.id}: snapshot {task.snapshot} has no recorded base"
            raise WorkspaceError(msg)
        story, evidence = await self._look_into(attempt, run, task, account)
        ending = attempt.ending
        if failure_of(evidence).failure is Failure.BUDGET and ending in _MAY_BE_EXHAUSTED:
            ending = AttemptState.BUDGET_EXHAUSTED
        claims = None if story.told is None else story.told.claims_success
        candidate = await self.collector.collect(
            attempt.id,
            workspace,
            base,
            repository=task.repository,
            out=self.layout.attempt(attempt.run, attempt.id),
            scope=task.scope,
            protected=task.protected,
            told=Told(
                ending=ending,
                trajectory=story.trajectory,
                claims_success=claims,
                limitations=story.limitations,
                connections=connections,
            ),
        )
        finding = failure_of(replace(evidence, has_changed=has_changed(candidate)))
        collected = replace(
            attempt,
            candidate=candidate.id,
            ending=ending,
            failure=finding.failure,
            detail=_detail(attempt, story, finding),
            agent_version=None if story.trajectory is None else story.trajectory.agent_version,
            limitations=story.limitations,
            claims_success=claims,
            connections=connections,
        )
        run = self.rows.journal.state.runs[run.id]
        if ending in _UNJUDGED:
            collected = self.rows.ended(collected, ending)
        elif run.cancel_requested:
            detail = collected.detail or "the run was cancelled before its evaluation"
            collected = self.rows.ended(replace(collected, detail=detail), AttemptState.CANCELLED)
        else:
            collected = replace(collected, state=AttemptState.EVALUATING)
        await self.rows.journal.append_all(
            [
                Change(entity=candidate, note=f"collected from {attempt.id}", expect=None),
                Change(entity=collected, note="collected", expect=attempt),
            ]
        )

    async def _look_into(
        self, attempt: Attempt, run: Run, task: Task, account: Account
    ) -> tuple[Story, Evidence]:
        """Read what the agent printed, and keep its story beside what we saw ourselves."""
        agent = agent_of(task, attempt)
        exec_id, _ = names_of(attempt)
        row = self.rows.journal.state.execs.get(exec_id)
        result = None if row is None else row.result
        story = await asyncio.to_thread(
            read_story,
            driver_named(agent.driver),
            agent,
            result,
            log_files(self.layout, attempt)[0],
            mask=self.mask,
        )
        bill = self.rows.journal.state.usage_of(attempt.id)  # whole: the account's is cut short
        observed: dict[str, object] = {
            "exit_code": attempt.exit_code,
            "elapsed_seconds": attempt.elapsed_seconds,
            "stop_reason": None if result is None else result.stop_reason.value,
            "requests": sum(row.requests for row in bill),
            "tokens": sum(row.tokens.total for row in bill),
        }
        await asyncio.to_thread(
            keep_story,
            self.layout.attempt(attempt.run, attempt.id),
            story,
            observed,
            mask=self.mask,
        )
        evidence = Evidence(
            ending=attempt.ending or AttemptState.INTERRUPTED,
            result=result,
            told=story.told,
            entries=account.entries,
            is_let_in=is_let_in(agent, run.limits),
            trouble=account.trouble,
        )
        return story, evidence


def has_changed(candidate: Candidate) -> bool:
    """Say whether a candidate's tree is another than its base's."""
    return candidate.result_tree != candidate.base_tree


def _detail(attempt: Attempt, story: Story, finding: Finding) -> str | None:
    if attempt.ending is not AttemptState.FINISHED:
        return attempt.detail
    match finding.failure:
        case Failure.PROVIDER if finding.detail is not None:
            return f"its model's provider kept it from its end: {finding.detail}"
        case Failure.BUDGET if finding.detail is not None:
            return finding.detail
        case Failure.OURS if finding.detail is not None:
            return f"the gateway was not there for it: {finding.detail}"
        case _:
            told = None if story.told is None else story.told.detail
            return told or attempt.detail
