"""The agent's own time: run to its end, attached to after a restart, or ended for a reason.

An agent may have spent something, so it is never begun a second time: where it has begun it is
attached to, or its recorded end is read, or its attempt is interrupted.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace

from forkyard.agents.registry import driver_named
from forkyard.base.durable import failpoint
from forkyard.coordinator.commands import Command
from forkyard.coordinator.ending import ENDED_BY_US, Ending, agent_of, ending_of
from forkyard.coordinator.interface import WorkspacesPort
from forkyard.coordinator.metering import Metering
from forkyard.coordinator.rows import Rows, names_of
from forkyard.errors import ForkyardError, InternalError, StoreError
from forkyard.model.execution import ExecResult
from forkyard.model.ids import RunId
from forkyard.model.run import Attempt, AttemptState, Run, Task

_log = logging.getLogger(__name__)

KILL_PATIENCE_SECONDS = 60.0
"""TERM, grace and KILL take seconds; a sandbox that needs longer is ended whole."""


@dataclass(slots=True, kw_only=True)
class AgentSteps:
    """See the module."""

    rows: Rows
    workspaces: WorkspacesPort
    metering: Metering
    remaining_seconds: Callable[[RunId], float | None]
    """Until the run's deadline; None where it has none."""

    async def run_agent(self, command: Command) -> None:
        """Run the agent to its end; attach to it, or read its recorded end, where it has begun."""
        attempt, run, task, _ = self.rows.about(command)
        try:
            # a server that has just started says again who is let in
            await self.metering.let_in(attempt, run, agent_of(task, attempt))
        except ForkyardError as error:
            _log.warning("Cannot let %s in again: %s", attempt.id, error)
        result = await self._exec(attempt, task, run)
        ending = self._natural(attempt, run, task, result)
        failpoint("C11")
        await self._agent_over(attempt, ending, result)

    async def stop_agent(self, command: Command) -> None:
        """End the agent for the command's reason; what it did is collected."""
        attempt, run, task, _ = self.rows.about(command)
        exec_id, _ = names_of(attempt)
        result: ExecResult | None = None
        if exec_id in self.rows.journal.state.execs:
            result = await self._kill(attempt, task, run)
        ending = Ending(
            state=command.ending or AttemptState.INTERRUPTED,
            detail=command.detail,
            trouble=command.trouble,
        )
        if (
            ending.state is AttemptState.TIMED_OUT
            and result is not None
            and result.stop_reason not in ENDED_BY_US
        ):
            # it ended by itself while we came to end it
            ending = self._natural(attempt, run, task, result)
        await self._agent_over(attempt, ending, result)

    # -- small ones --------------------------------------------------------------------------

    async def _exec(self, attempt: Attempt, task: Task, run: Run) -> ExecResult:
        exec_id, workspace = names_of(attempt)
        agent = agent_of(task, attempt)
        command = driver_named(agent.driver).command(agent, task)
        timeout = run.limits.attempt_timeout_seconds
        remaining = self.remaining_seconds(run.id)
        if remaining is not None:
            timeout = min(timeout, max(remaining, 0.1))
        try:
            ended = await self.workspaces.exec(
                workspace,
                command.argv,
                working_directory=command.working_directory,
                variables=command.variables,
                timeout_seconds=timeout,
                exec_id=exec_id,
                keep_background=False,
            )
        except StoreError:
            raise
        except ForkyardError:
            # Its end may be known all the same. If not, it runs on, or nothing was begun: then
            # asking again attaches, or begins what never was.
            known = self.rows.journal.state.execs.get(exec_id)
            if known is None or known.result is None:
                raise
            return known.result
        if ended.result is None:
            msg = f"cannot follow exec {exec_id}: it returned before its end"
            raise InternalError(msg)
        return ended.result

    async def _kill(self, attempt: Attempt, task: Task, run: Run) -> ExecResult | None:
        exec_id, workspace = names_of(attempt)
        try:
            async with asyncio.timeout(KILL_PATIENCE_SECONDS):
                await self.workspaces.kill_exec(workspace, exec_id)
                return await self._exec(attempt, task, run)
        except TimeoutError:
            await self.workspaces.stop(workspace)
            ended = self.rows.journal.state.execs.get(exec_id)
            return None if ended is None else ended.result

    def _natural(self, attempt: Attempt, run: Run, task: Task, result: ExecResult) -> Ending:
        is_cancelled = self.rows.journal.state.runs[run.id].cancel_requested
        return ending_of(result, agent_of(task, attempt), run.limits, is_cancelled=is_cancelled)

    async def _agent_over(
        self, attempt: Attempt, ending: Ending, result: ExecResult | None
    ) -> None:
        over = replace(
            attempt,
            state=AttemptState.COLLECTING,
            ending=ending.state,
            detail=ending.detail,
            trouble=ending.trouble,
        )
        if result is not None:
            over = replace(over, exit_code=result.exit_code, elapsed_seconds=result.elapsed_seconds)
        await self.rows.commit(attempt, over, f"agent is over: {ending.detail or ending.state}")
