"""A fleet without sandboxes: the same rules as the real one, results as a test scripts them."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from dataclasses import dataclass, field

from forkyard.config import Layout
from forkyard.errors import WorkspaceError
from forkyard.model.execution import ExecResult, ExecSpec, StopReason
from forkyard.model.ids import ExecId, WorkspaceId
from forkyard.workspace.interface import Isolation, Line, RunningSandbox, SandboxSpec


@dataclass(slots=True)
class Scripted:
    """How commands that a test names behave."""

    matches: Callable[[ExecSpec], bool]
    exit_code: int = 0
    stdout: bytes = b""
    effect: Callable[[ExecSpec], None] | None = None
    """Called when the command starts; it may write into the workspace's upper directory."""
    held: asyncio.Event | None = None
    """The command runs until this is set, or it is ended."""


@dataclass(slots=True)
class FakeFleet:
    """See the module. One object is one machine: it survives the server of a test."""

    layout: Layout
    scripts: list[Scripted] = field(default_factory=list)
    started: list[SandboxSpec] = field(default_factory=list)
    executed: list[ExecSpec] = field(default_factory=list)
    made_ready: list[ExecSpec] = field(default_factory=list)
    start_errors: list[WorkspaceError] = field(default_factory=list)
    """Each fails one start."""
    stop_errors: list[WorkspaceError] = field(default_factory=list)
    prepared: dict[WorkspaceId, SandboxSpec] = field(default_factory=dict)
    """Made ahead, and neither started nor stopped yet."""
    frozen: dict[WorkspaceId, float] = field(default_factory=dict)
    """Held still now, and for how long at most."""
    _sandboxes: dict[WorkspaceId, SandboxSpec] = field(default_factory=dict)
    _results: dict[tuple[WorkspaceId, ExecId], asyncio.Future[ExecResult]] = field(
        default_factory=dict
    )
    _records: dict[tuple[WorkspaceId, ExecId], ExecResult] = field(default_factory=dict)

    def script(
        self,
        word: str,
        *,
        exit_code: int = 0,
        stdout: bytes = b"",
        effect: Callable[[ExecSpec], None] | None = None,
        held: asyncio.Event | None = None,
    ) -> None:
        """Say how commands behave whose argument list contains a word."""
        self.scripts.append(
            Scripted(
                matches=lambda spec: any(word in part for part in spec.argv),
                exit_code=exit_code,
                stdout=stdout,
                effect=effect,
                held=held,
            )
        )

    def crash(self, workspace: WorkspaceId) -> None:
        """Let a sandbox die without a word; its running execs leave no record."""
        self._sandboxes.pop(workspace, None)
        for (owner, exec_id), result in self._results.items():
            if owner == workspace and not result.done():
                result.set_result(_result(exec_id, StopReason.INTERRUPTED, None))

    async def isolation(self) -> Isolation:
        """Say that nothing is isolated."""
        return Isolation(runtime=None, storage_mode="fake", problems=("this is a fake",))

    async def start(self, spec: SandboxSpec) -> None:
        """Have a sandbox; asking again with the same epoch changes nothing."""
        await asyncio.sleep(0)
        known = self._sandboxes.get(spec.workspace)
        if known is not None and known.epoch == spec.epoch:
            return
        self.prepared.pop(spec.workspace, None)
        if self.start_errors:
            raise self.start_errors.pop()
        taken = {sandbox.slot for sandbox in self._sandboxes.values()}
        if spec.slot in taken:
            raise WorkspaceError(f"cannot start {spec.workspace}: slot {spec.slot} is in use")
        if not self.layout.upper(spec.workspace).is_dir():
            raise WorkspaceError(f"cannot start {spec.workspace}: it has no upper directory")
        self.started.append(spec)
        self._sandboxes[spec.workspace] = spec

    async def prepare(self, spec: SandboxSpec) -> None:
        """Keep one made ahead."""
        await asyncio.sleep(0)
        if not self.layout.upper(spec.workspace).is_dir():
            raise WorkspaceError(f"cannot prepare {spec.workspace}: it has no upper directory")
        self.prepared[spec.workspace] = spec

    async def exec(self, spec: ExecSpec, *, epoch: int) -> ExecResult:
        """Run what the scripts say, or attach to it."""
        key = (spec.workspace, spec.id)
        if key not in self._results:
            sandbox = self._sandboxes.get(spec.workspace)
            if sandbox is None or sandbox.epoch != epoch:
                return _result(spec.id, StopReason.INTERRUPTED, None)
            self._results[key] = asyncio.get_running_loop().create_future()
            self._begin(spec)
        return await asyncio.shield(self._results[key])

    def hold(self, spec: ExecSpec, *, epoch: int) -> None:
        """Remember what was made ready."""
        if (found := self._sandboxes.get(spec.workspace)) is not None and found.epoch == epoch:
            self.made_ready.append(spec)

    def drop(self, spec: ExecSpec, *, epoch: int) -> None:
        """Forget it."""
        if spec in self.made_ready:
            self.made_ready.remove(spec)

    def _begin(self, spec: ExecSpec) -> None:
        self.executed.append(spec)
        script = next((s for s in self.scripts if s.matches(spec)), Scripted(lambda _: True))
        folder = self.layout.exec(spec.workspace, spec.id)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "stdout").write_bytes(script.stdout)
        (folder / "stderr").write_bytes(b"")
        if script.effect is not None:
            script.effect(spec)
        if script.held is None:
            self._finish(spec, StopReason.EXITED, script.exit_code)
        else:
            asyncio.get_running_loop().create_task(self._hold(spec, script))

    async def _hold(self, spec: ExecSpec, script: Scripted) -> None:
        assert script.held is not None
        await script.held.wait()
        if spec.workspace in self._sandboxes:
            self._finish(spec, StopReason.EXITED, script.exit_code)

    def _finish(self, spec: ExecSpec, reason: StopReason, exit_code: int | None) -> None:
        key = (spec.workspace, spec.id)
        if not self._results[key].done():
            result = _result(spec.id, reason, exit_code)
            self._records[key] = result
            self._results[key].set_result(result)

    async def kill_exec(self, workspace: WorkspaceId, exec_id: ExecId, *, epoch: int) -> None:
        """End one command."""
        sandbox = self._sandboxes.get(workspace)
        if sandbox is not None and sandbox.epoch == epoch:
            for spec in self.executed:
                if spec.id == exec_id:
                    self._finish(spec, StopReason.KILLED, 137)

    async def freeze(self, workspace: WorkspaceId, *, epoch: int, seconds: float) -> None:
        """Note that it is held still."""
        await asyncio.sleep(0)
        sandbox = self._sandboxes.get(workspace)
        if sandbox is None or sandbox.epoch != epoch:
            raise WorkspaceError(f"cannot freeze {workspace}: its sandbox is gone")
        self.frozen[workspace] = seconds

    async def thaw(self, workspace: WorkspaceId, *, epoch: int) -> float | None:
        """Let it go on."""
        await asyncio.sleep(0)
        sandbox = self._sandboxes.get(workspace)
        known = self.frozen.pop(workspace, None)
        return None if known is None or sandbox is None or sandbox.epoch != epoch else 0.25

    async def attach(self, workspace: WorkspaceId, exec_id: ExecId, *, epoch: int) -> Line | None:
        """Have nobody to attach to."""
        return None

    async def connect(self, workspace: WorkspaceId, port: int, *, epoch: int) -> socket.socket:
        """Have nobody listening."""
        raise WorkspaceError(f"cannot connect to port {port} in {workspace}: connection refused")

    async def stop(self, workspace: WorkspaceId, *, epoch: int) -> None:
        """End a sandbox of that epoch and its commands."""
        self.prepared.pop(workspace, None)
        await asyncio.sleep(0)
        if self.stop_errors:
            raise self.stop_errors.pop()
        sandbox = self._sandboxes.get(workspace)
        if sandbox is None or sandbox.epoch != epoch:
            return
        del self._sandboxes[workspace]
        for spec in self.executed:
            if spec.workspace == workspace:
                self._finish(spec, StopReason.KILLED, 137)

    async def running(self) -> tuple[RunningSandbox, ...]:
        """List what is there."""
        return tuple(
            RunningSandbox(
                workspace=spec.workspace,
                epoch=spec.epoch,
                execs=tuple(
                    exec_id
                    for (owner, exec_id), result in self._results.items()
                    if owner == spec.workspace and not result.done()
                ),
            )
            for spec in self._sandboxes.values()
        )

    def recorded_result(self, workspace: WorkspaceId, exec_id: ExecId) -> ExecResult | None:
        """Give what an exec left behind."""
        return self._records.get((workspace, exec_id))


def _result(exec_id: ExecId, reason: StopReason, exit_code: int | None) -> ExecResult:
    return ExecResult(
        id=exec_id,
        stop_reason=reason,
        exit_code=exit_code,
        elapsed_seconds=0.0,
        stdout_bytes=0,
        stderr_bytes=0,
    )
