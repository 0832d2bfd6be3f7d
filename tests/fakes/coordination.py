"""A small world in memory for the coordinator: workspaces, agents and judges that keep the rules.

Agents are named by what they do (the words of their command):

- ``exit N``: ends at once with status N
- ``hang``: runs until it is killed or its time is over
- ``lose``: its sandbox dies while it runs
- ``short N``: runs N hundredths of a second, then exits 0
- ``memory``: the memory limit ends it

The world outlives a coordinator, as sandboxes outlive a server; rows go through the real journal.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from fakes.gateway import FakeAgents, FakeGateway
from forkyard.base.clock import SystemClock
from forkyard.config import Layout
from forkyard.coordinator.coordinator import Coordinator
from forkyard.coordinator.disk import DiskFloor
from forkyard.coordinator.interface import Told
from forkyard.errors import WorkspaceError
from forkyard.evaluation.ranking import rank
from forkyard.model.candidate import Candidate, CandidateStatus
from forkyard.model.connection import Connection, ConnectionOutcome, Connections
from forkyard.model.execution import Exec, ExecResult, ExecSpec, ExecState, StopReason
from forkyard.model.ids import (
    AttemptId,
    EvaluationId,
    ExecId,
    SnapshotId,
    WorkspaceId,
    new_candidate_id,
    new_evaluation_id,
    new_exec_id,
    new_snapshot_id,
    new_workspace_id,
)
from forkyard.model.run import AgentSpec, Task
from forkyard.model.verdict import Assurance, Baseline, Evaluation, VerdictKind
from forkyard.model.workspace import (
    REPOSITORY,
    Environment,
    Limits,
    NetworkPolicy,
    ReadOnlyMount,
    RecordedBase,
    Snapshot,
    SnapshotState,
    Workspace,
    WorkspaceState,
)
from forkyard.store.journal import Journal
from forkyard.workspace.interface import RunningSandbox

TREE = "4b825dc642cb6eb9a060e54bf8d69288fbee4904"


@dataclass(slots=True)
class World:
    """What is on the machine, and what happened to it."""

    journal: Journal
    layout: Layout
    sandboxes: dict[WorkspaceId, int] = field(default_factory=dict)
    directories: set[WorkspaceId] = field(default_factory=set)
    running: dict[ExecId, asyncio.Future[ExecResult]] = field(default_factory=dict)
    records: dict[ExecId, ExecResult] = field(default_factory=dict)
    agent_starts: list[str] = field(default_factory=list)
    """Owner of each agent that was really begun: twice the same is work done twice."""
    most_at_once: int = 0
    gateway: FakeGateway = field(default_factory=FakeGateway)
    agents: FakeAgents = field(default_factory=FakeAgents)
    told: list[Told] = field(default_factory=list)
    """What the collector heard of each agent's end."""
    are_idle: bool = False
    """Whether agents leave their tree as it was."""
    troubles: dict[str, str] = field(default_factory=dict)
    """Call name -> message of a WorkspaceError that it raises."""
    clock: SystemClock = field(default_factory=SystemClock)

    def trouble(self, call: str) -> None:
        """Raise what the test asked for."""
        if call in self.troubles:
            raise WorkspaceError(self.troubles[call])

    def end(self, exec_id: ExecId, reason: StopReason, exit_code: int | None = None) -> None:
        """Record the end of an exec, once."""
        future = self.running.pop(exec_id, None)
        if future is None or future.done():
            return
        result = _result(exec_id, reason, exit_code)
        if reason is not StopReason.INTERRUPTED:
            self.records[exec_id] = result
        future.set_result(result)

    def end_sandbox(self, workspace: WorkspaceId, reason: StopReason) -> None:
        """Take a sandbox and everything in it away."""
        self.sandboxes.pop(workspace, None)
        for exec_id in list(self.running):
            if self.journal.state.execs[exec_id].workspace == workspace:
                self.end(exec_id, reason)


@dataclass(slots=True)
class FakeWorkspaces:
    """Rows in the journal, sandboxes in the world."""

    world: World

    async def create(
        self,
        snapshot: SnapshotId,
        *,
        display_name: str = "",
        ephemeral: bool = False,
        network: NetworkPolicy = NetworkPolicy.NONE,
        allow: tuple[str, ...] = (),
        reaches_models: bool = False,
        limits: Limits | None = None,
        owner: str | None = None,
        workspace_id: WorkspaceId | None = None,
        mounts: Sequence[ReadOnlyMount] = (),
    ) -> Workspace:
        """Fork a stopped workspace: its row first."""
        self.world.trouble("create")
        row = Workspace(
            id=workspace_id or new_workspace_id(),
            snapshot=snapshot,
            layers=(),
            environment=Environment(mounts=tuple(mounts)),
            limits=limits or Limits(),
            state=WorkspaceState.STOPPED,
            created_at="now",
            display_name=display_name,
            ephemeral=ephemeral,
            network=network,
            allow=allow,
            reaches_models=reaches_models,
            owner=owner,
        )
        await self.world.journal.append(row, "created", expect=None)
        self.world.directories.add(row.id)
        return row

    async def start(self, workspace: WorkspaceId) -> Workspace:
        """Run its sandbox under a new epoch."""
        self.world.trouble("start")
        row = self.world.journal.state.workspaces[workspace]
        if row.state is WorkspaceState.RUNNING:
            return row
        row = replace(row, state=WorkspaceState.RUNNING, epoch=row.epoch + 1)
        await self.world.journal.append(row, "started")
        self.world.sandboxes[workspace] = row.epoch
        self.world.most_at_once = max(self.world.most_at_once, len(self.world.sandboxes))
        return row

    async def connections(self, workspace: WorkspaceId) -> Connections | None:
        """Give none but for an allowlist: then one."""
        row = self.world.journal.state.workspaces[workspace]
        if row.network is not NetworkPolicy.ALLOWLIST:
            return None
        one = Connection(at="now", host="a.example.org", port=443, outcome=ConnectionOutcome.CLOSED)
        return Connections(listed=(one,))

    async def exec(
        self,
        workspace: WorkspaceId,
        argv: Sequence[str],
        *,
        working_directory: str = "/",
        variables: Mapping[str, str] | None = None,
        timeout_seconds: float | None = None,
        exec_id: ExecId | None = None,
        keep_background: bool = True,
        output_bytes: int | None = None,
    ) -> Exec:
        """Run a command, or attach to it."""
        self.world.trouble("exec")
        identity = exec_id or new_exec_id()
        row = self.world.journal.state.execs.get(identity)
        if row is None:
            owner = await self.start(workspace)
            spec = ExecSpec(
                id=identity,
                workspace=workspace,
                argv=tuple(argv),
                working_directory=working_directory,
                variables=dict(variables or {}),
                timeout_seconds=timeout_seconds,
                keep_background=keep_background,
            )
            row = Exec(
                id=identity,
                workspace=workspace,
                epoch=owner.epoch,
                spec=spec,
                state=ExecState.RUNNING,
                created_at="now",
            )
            await self.world.journal.append(row, "exec", expect=None)
            self._begin(row, owner)
        if row.state is ExecState.ENDED:
            return row
        future = self.world.running.get(identity)
        if future is not None:
            result = await asyncio.shield(future)
        else:
            lost = _result(identity, StopReason.INTERRUPTED, None)
            result = self.world.records.get(identity, lost)
        ended = replace(row, state=ExecState.ENDED, result=result)
        await self.world.journal.append(ended, "ended")
        return ended

    def _begin(self, row: Exec, workspace: Workspace) -> None:
        loop = asyncio.get_running_loop()
        self.world.running[row.id] = loop.create_future()
        self.world.agent_starts.append(workspace.owner or "")
        files = self.world.layout.exec(workspace.id, row.id)
        files.mkdir(parents=True, exist_ok=True)
        (files / "stdout").write_text(f"output of {row.id}")
        (files / "stderr").write_text("")
        end, word = self.world.end, row.spec.argv[-1].split()
        match word[0]:
            case "exit":
                loop.call_soon(end, row.id, StopReason.EXITED, int(word[1]))
            case "short":
                loop.call_later(int(word[1]) / 100, end, row.id, StopReason.EXITED, 0)
            case "memory":
                loop.call_soon(end, row.id, StopReason.MEMORY, 137)
            case "lose":
                loop.call_soon(self.world.end_sandbox, row.workspace, StopReason.INTERRUPTED)
            case _:
                if row.spec.timeout_seconds is not None:
                    loop.call_later(
                        row.spec.timeout_seconds, end, row.id, StopReason.TIMED_OUT, 143
                    )

    async def kill_exec(self, workspace: WorkspaceId, exec_id: ExecId) -> None:
        """End one exec."""
        self.world.trouble("kill_exec")
        self.world.end(exec_id, StopReason.KILLED, 143)

    async def stop(self, workspace: WorkspaceId) -> Workspace:
        """End a sandbox."""
        self.world.trouble("stop")
        row = self.world.journal.state.workspaces[workspace]
        self.world.end_sandbox(workspace, StopReason.KILLED)
        stopped = replace(row, state=WorkspaceState.STOPPED)
        if stopped != row:
            await self.world.journal.append(stopped, "stopped")
        return stopped

    async def delete(self, workspace: WorkspaceId) -> None:
        """Remove a workspace."""
        self.world.trouble("delete")
        row = self.world.journal.state.workspaces[workspace]
        if row.state is WorkspaceState.DELETED:
            return
        self.world.end_sandbox(workspace, StopReason.KILLED)
        self.world.directories.discard(workspace)
        await self.world.journal.append(replace(row, state=WorkspaceState.DELETED), "deleted")

    async def recover(self) -> None:
        """Make rows and world agree, as the real ones do at a start."""
        for row in list(self.world.journal.state.workspaces.values()):
            is_alive = self.world.sandboxes.get(row.id) == row.epoch
            if row.state is WorkspaceState.RUNNING and not is_alive:
                stopped = replace(row, state=WorkspaceState.STOPPED)
                await self.world.journal.append(stopped, "gone")


@dataclass(slots=True)
class FakeFleet:
    """What the reaper sees of the world."""

    world: World

    async def running(self) -> tuple[RunningSandbox, ...]:
        """List sandboxes."""
        return tuple(
            RunningSandbox(workspace=workspace, epoch=epoch)
            for workspace, epoch in self.world.sandboxes.items()
        )

    async def stop(self, workspace: WorkspaceId, *, epoch: int) -> None:
        """End one."""
        if self.world.sandboxes.get(workspace) == epoch:
            self.world.end_sandbox(workspace, StopReason.KILLED)


@dataclass(slots=True)
class FakeSnapshots:
    """Seals by making another row; once per snapshot."""

    world: World

    async def sealed(self, snapshot: Snapshot) -> Snapshot:
        """Give the derived snapshot."""
        self.world.trouble("sealed")
        for known in self.world.journal.state.snapshots.values():
            if known.sealed_of == snapshot.id:
                return known
        sealed = replace(snapshot, id=new_snapshot_id(), sealed_of=snapshot.id)
        await self.world.journal.append(sealed, "sealed", expect=None)
        return sealed


@dataclass(slots=True)
class FakeCollector:
    """A tree per attempt; refuses a workspace that something still runs in."""

    world: World

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
        """Collect."""
        self.world.trouble("collect")
        assert workspace.id not in self.world.sandboxes
        assert workspace.id in self.world.directories
        await asyncio.to_thread(_write, out / "patch", attempt)
        self.world.told.append(told)
        return Candidate(
            id=new_candidate_id(),
            attempt=attempt,
            status=CandidateStatus.COMPLETE,
            base_tree=base.tree,
            result_tree=base.tree if self.world.are_idle else attempt,
            patch_sha256="0" * 64,
            patch_bytes=len(attempt),
            manifest_sha256="0" * 64,
            created_at="now",
        )


@dataclass(slots=True)
class FakeEvaluator:
    """Judges at once: everything is solved, unless the base could not be judged."""

    world: World

    async def baseline(
        self, task: Task, snapshot: Snapshot, *, owner: str, out: Path, repeats: int = 2
    ) -> Baseline:
        """Give an empty baseline."""
        self.world.trouble("baseline")
        await asyncio.sleep(0)
        return Baseline(checks=())

    async def evaluate(
        self,
        task: Task,
        snapshot: Snapshot,
        candidate: Candidate,
        baseline: Baseline,
        *,
        out: Path,
        evaluation_id: EvaluationId | None = None,
    ) -> Evaluation:
        """Give a good verdict, or none where the base could not be judged."""
        self.world.trouble("evaluate")
        await asyncio.sleep(0)
        trouble = baseline.trouble
        return Evaluation(
            id=evaluation_id or new_evaluation_id(),
            candidate=candidate.id,
            result_tree=candidate.result_tree,
            verdict=VerdictKind.SOLVED if trouble is None else VerdictKind.NOT_EVALUATED,
            assurance=Assurance.IN_PROCESS if trouble is None else Assurance.NONE,
            created_at="now",
            reasons=("every check passes" if trouble is None else "not judged",),
            trouble=trouble,
        )


def make_world(home: Path) -> World:
    """Open a journal in an empty directory and put a world around it."""
    layout = Layout(home)
    journal = Journal.open(layout.database, SystemClock(), allow_volatile=True)
    return World(journal=journal, layout=layout)


def make_coordinator(
    world: World, *, parallel_limit: int = 8, floor: DiskFloor | None = None
) -> Coordinator:
    """Wire a coordinator to the world; as many one after another as there are servers."""
    return Coordinator(
        journal=world.journal,
        workspaces=FakeWorkspaces(world),
        snapshots=FakeSnapshots(world),
        agents=world.agents,
        gateway=world.gateway,
        collector=FakeCollector(world),
        evaluator=FakeEvaluator(world),
        rank=rank,
        fleet=FakeFleet(world),
        layout=world.layout,
        clock=world.clock,
        parallel_limit=parallel_limit,
        floor=floor or DiskFloor(directory=world.layout.home, free_bytes=0, free_inodes=0),
    )


async def make_task(world: World, *commands: str, attempts: int = 1) -> Task:
    """Give a task on a ready snapshot, with an agent for each command."""
    snapshot = Snapshot(
        id=new_snapshot_id(),
        name="start",
        state=SnapshotState.READY,
        created_at="now",
        base=RecordedBase(repository=REPOSITORY, commit=None, tree=TREE),
    )
    await world.journal.append(snapshot, "ready", expect=None)
    agents = tuple(
        AgentSpec(name=f"agent-{number}", driver="command", command=command, attempts=attempts)
        for number, command in enumerate(commands)
    )
    return Task(name="task", prompt="do it", snapshot=snapshot.id, agents=agents)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def _result(exec_id: ExecId, reason: StopReason, exit_code: int | None) -> ExecResult:
    return ExecResult(
        id=exec_id,
        stop_reason=reason,
        exit_code=exit_code,
        elapsed_seconds=0.1,
        stdout_bytes=0,
        stderr_bytes=0,
    )
