"""The local fleet: sandboxes on this machine, by way of the fork-server and its shims.

It keeps one connection per running sandbox. A connection that breaks says nothing about the
sandbox; what counts is whether its shim answers again, and after that the exit records.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from dataclasses import replace
from pathlib import Path

from forkyard.base.durable import failpoint
from forkyard.config import Layout
from forkyard.errors import WorkspaceError
from forkyard.model.execution import ExecResult, ExecSpec
from forkyard.model.ids import ExecId, WorkspaceId
from forkyard.shim import cgroups
from forkyard.shim.hierarchies import detect
from forkyard.shim.main import PID_FILE, SOCKET
from forkyard.shim.protocol import Message
from forkyard.shim.records import SPEC, read_record
from forkyard.workspace.attaching import attach, connect
from forkyard.workspace.drivers.oci import exec_document, sandbox_document
from forkyard.workspace.fork_server import ForkServer
from forkyard.workspace.interface import Isolation, Line, RunningSandbox, SandboxSpec
from forkyard.workspace.runtime import RUNTIMES, Runtime, RuntimeProbe
from forkyard.workspace.shims import (
    STOP_SECONDS,
    Shim,
    end_process,
    interrupted,
    last_words,
    open_connection,
    read_message,
    result_of,
)

_START_SECONDS = 60.0


class LocalFleet:
    """Sandboxes on this machine (workspace/interface.py has the contract)."""

    def __init__(self, layout: Layout, *, runtimes: tuple[str, ...] = RUNTIMES) -> None:
        """Keep where everything lies and what may be used; nothing is started yet."""
        self._layout = layout
        self._shims: dict[WorkspaceId, Shim] = {}
        self._locks: dict[WorkspaceId, asyncio.Lock] = {}
        self._fork_server = ForkServer(layout)
        self._probe = RuntimeProbe(layout, self._trial, runtimes)

    async def isolation(self) -> Isolation:
        """Say what isolation is in force, by really starting a container once."""
        return await self._probe.isolation()

    async def start(self, spec: SandboxSpec) -> None:
        """Run a workspace's sandbox; returns when commands can be run in it.

        Raises:
            SandboxUnavailableError: Nothing here isolates as promised.
            WorkspaceError: This sandbox could not be made; nothing of it is left.

        Cancellation:
            The sandbox may go on starting; `start` again attaches to it, `stop` ends it.
        """
        async with self._lock(spec.workspace):
            known = await self._attach(spec.workspace)
            if known is not None:
                if not known.is_furnished:
                    if await self._furnish(known, spec):
                        return
                elif known.epoch == spec.epoch:
                    known.disk_bytes = spec.limits.disk_bytes
                    return
                else:
                    await self._stop(known)
            runtime = await self._probe.runtime()
            shim = await self._start(spec, runtime)
            self._shims[spec.workspace] = shim

    async def prepare(self, spec: SandboxSpec) -> None:
        """Make a sandbox ahead of time: all of it but the workspace's files, of which it says none.

        `start` with the same workspace and epoch then takes milliseconds; where its spec differs
        in more than the layers, or this sandbox died meanwhile, it makes one as always.

        Raises:
            SandboxUnavailableError: Nothing here isolates as promised.
            WorkspaceError: It could not be made; nothing of it is left.
        """
        ahead = _without_files(spec)
        async with self._lock(spec.workspace):
            shim = await self._start(ahead, await self._probe.runtime())
            shim.made_for, shim.is_furnished = ahead, False
            self._shims[spec.workspace] = shim

    async def _furnish(self, shim: Shim, spec: SandboxSpec) -> bool:
        """Give a sandbox made ahead its files; False where another one is to be made instead."""
        if shim.made_for == _without_files(spec):
            shim.furnished = asyncio.get_running_loop().create_future()
            shim.send({"op": "furnish", "layers": list(spec.layers)})
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_START_SECONDS):
                    if await shim.furnished is None:
                        shim.is_furnished = True
                        return True
        await self._stop(shim)
        await end_process(self._layout.sandbox(shim.workspace))
        await self._sweep(shim.workspace, shim.epoch)
        return False

    async def _start(self, spec: SandboxSpec, runtime: Runtime) -> Shim:
        document = sandbox_document(spec, self._layout, runtime.path)
        shim = await self._run_document(document)
        shim.disk_bytes = spec.limits.disk_bytes
        return shim

    async def _run_document(self, document: Message) -> Shim:
        sandbox = Path(document["sandbox"])
        for folder in (sandbox, Path(document["execs"])):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = sandbox / SPEC
        path.write_text(json.dumps(document), encoding="utf-8")
        (sandbox / PID_FILE).unlink(missing_ok=True)
        shim, hello = await self._ask_for_shim(document, path)
        if hello is None and not (sandbox / PID_FILE).exists():
            # The fork-server died before it forked anything: the next one is asked.
            shim.writer.close()
            self._fork_server.drop_lease()
            shim, hello = await self._ask_for_shim(document, path)
        if hello is None or hello.get("trouble"):
            shim.writer.close()
            reason = (hello or {}).get("trouble") or last_words(sandbox)
            await self._sweep(document["workspace"], document["epoch"])
            message = f"cannot start {document['workspace']}: {reason}"
            raise WorkspaceError(message, hint="Run `forkyard doctor` to see what is in force.")
        self._listen(shim)
        return shim

    async def _ask_for_shim(self, document: Message, path: Path) -> tuple[Shim, Message | None]:
        reader, writer = await self._fork_server.ask({"op": "start", "spec": str(path)})
        failpoint("C04")
        shim = Shim(document["workspace"], document["epoch"], reader, writer)
        try:
            async with asyncio.timeout(_START_SECONDS):
                return shim, await read_message(reader)
        except TimeoutError:
            return shim, None

    async def _trial(self, document: Message, spec: ExecSpec) -> ExecResult:
        shim = await self._run_document(document)
        try:
            return await asyncio.wait_for(self._send_exec(shim, spec), _START_SECONDS)
        finally:
            await self._stop(shim)
            await self._sweep(shim.workspace, shim.epoch)

    def _send_exec(self, shim: Shim, spec: ExecSpec) -> asyncio.Future[ExecResult]:
        future = shim.ended.get(spec.id)
        if future is None:
            future = asyncio.get_running_loop().create_future()
            shim.ended[spec.id] = future
            shim.send({"op": "exec", "spec": exec_document(spec, disk_bytes=shim.disk_bytes)})
        return future

    def _listen(self, shim: Shim) -> None:
        shim.task = asyncio.get_running_loop().create_task(self._follow(shim))

    async def _follow(self, shim: Shim) -> None:
        try:
            while (message := await read_message(shim.reader)) is not None:
                match message["op"]:
                    case "ended":
                        future = shim.ended.pop(ExecId(message["exec"]), None)
                        if future is not None and not future.done():
                            future.set_result(result_of(message["result"]))
                    case "furnished" if shim.furnished is not None:
                        shim.furnished.set_result(message["trouble"])
                    case "frozen" | "thawed" if shim.stillness is not None:
                        shim.stillness.set_result(message)
                    case "stopped":
                        break
                    case _:
                        continue
        finally:
            if self._shims.get(shim.workspace) is shim:
                del self._shims[shim.workspace]
            shim.writer.close()
            shim.closed.set()
            shim.let_go()

    async def exec(self, spec: ExecSpec, *, epoch: int) -> ExecResult:
        """Run one command and wait for its end, or attach to it if it was started before.

        Cancellation:
            The command goes on; call again with the same id to wait for it again.
        """
        recorded = self.recorded_result(spec.workspace, spec.id)
        if recorded is not None:
            return recorded
        while True:
            shim = await self._attach(spec.workspace)
            if shim is None or shim.epoch != epoch:
                return self.recorded_result(spec.workspace, spec.id) or interrupted(spec.id)
            future = self._send_exec(shim, spec)
            await asyncio.wait([future])
            if not future.cancelled():
                return future.result()
            # The connection broke: ask whoever is there now, or read what was left.
            recorded = self.recorded_result(spec.workspace, spec.id)
            if recorded is not None:
                return recorded

    def hold(self, spec: ExecSpec, *, epoch: int) -> None:
        """Have a command made ready; see `Fleet.hold`."""
        shim = self._shims.get(spec.workspace)
        if shim is not None and shim.epoch == epoch and shim.is_furnished and _is_plain(spec):
            shim.send({"op": "hold", "spec": exec_document(spec, disk_bytes=shim.disk_bytes)})

    def drop(self, spec: ExecSpec, *, epoch: int) -> None:
        """Forget a command that was held; see `Fleet.drop`."""
        shim = self._shims.get(spec.workspace)
        if shim is not None and shim.epoch == epoch:
            shim.send({"op": "drop", "exec": spec.id})

    async def kill_exec(
        self, workspace: WorkspaceId, exec_id: ExecId, *, epoch: int, grace_seconds: float = 5.0
    ) -> None:
        """End one exec and everything it left behind: TERM, grace, KILL. Idempotent."""
        shim = await self._attach(workspace)
        if shim is not None and shim.epoch == epoch:
            shim.send({"op": "kill", "exec": exec_id, "grace": grace_seconds})

    async def freeze(self, workspace: WorkspaceId, *, epoch: int, seconds: float) -> None:
        """Hold everything in a sandbox still; see `Fleet.freeze`."""
        answer = await self._hold(workspace, epoch, {"op": "freeze", "seconds": seconds})
        if answer["trouble"] is not None:
            raise WorkspaceError(
                f"cannot freeze {workspace}: {answer['trouble']}",
                hint=f"Stop it instead: `forkyard workspace stop {workspace}`.",
            )

    async def thaw(self, workspace: WorkspaceId, *, epoch: int) -> float | None:
        """Let a sandbox go on; see `Fleet.thaw`."""
        answer = await self._hold(workspace, epoch, {"op": "thaw"})
        return float(answer["seconds"]) if answer["held"] else None

    async def _hold(self, workspace: WorkspaceId, epoch: int, order: Message) -> Message:
        shim = await self._attach(workspace)
        if shim is None or shim.epoch != epoch:
            return {"trouble": "its sandbox is gone", "held": False}
        shim.stillness = asyncio.get_running_loop().create_future()
        shim.send(order)
        try:
            async with asyncio.timeout(_START_SECONDS):
                return await shim.stillness
        except TimeoutError:
            return {"trouble": "its shim does not answer", "held": False}
        finally:
            shim.stillness = None

    async def attach(self, workspace: WorkspaceId, exec_id: ExecId, *, epoch: int) -> Line | None:
        """Attach to an exec that runs: give it input, get its output; None where it does not.

        Cancellation:
            Safe; the exec goes on.
        """
        return await attach(self._layout.sandbox(workspace) / SOCKET, exec_id, epoch)

    async def connect(self, workspace: WorkspaceId, port: int, *, epoch: int) -> socket.socket:
        """Connect to a port of a sandbox's own loopback.

        Raises:
            WorkspaceError: Nobody listens there, or the sandbox is gone.

        Cancellation:
            Safe; the connection is closed.
        """
        return await connect(self._layout.sandbox(workspace) / SOCKET, workspace, port, epoch)

    async def stop(self, workspace: WorkspaceId, *, epoch: int) -> None:
        """End a sandbox and all that is in it. Idempotent, also when it never ran.

        Raises:
            WorkspaceError: Something of it is still there after a bounded wait.
        """
        async with self._lock(workspace):
            shim = await self._attach(workspace)
            epochs = {epoch}
            if shim is None or shim.epoch <= epoch:
                if shim is not None:
                    await self._stop(shim)
                    epochs.add(shim.epoch)
                elif (hierarchies := detect()) is not None:
                    cgroups.thaw(hierarchies, f"{workspace}-{epoch}")
                await end_process(self._layout.sandbox(workspace))
            # Of one that a newer sandbox followed nothing but groups can be left.
            for one in epochs:
                await self._sweep(workspace, one)
        self._locks.pop(workspace, None)

    async def _stop(self, shim: Shim) -> None:
        with contextlib.suppress(OSError):
            shim.send({"op": "stop"})
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STOP_SECONDS):
                await shim.closed.wait()

    async def _sweep(self, workspace: WorkspaceId, epoch: int) -> None:
        hierarchies = detect()
        if hierarchies is None:
            return
        try:
            await asyncio.to_thread(cgroups.sweep, hierarchies, f"{workspace}-{epoch}")
        except OSError as error:
            message = f"cannot clean up after {workspace}: {error}"
            raise WorkspaceError(
                message, hint="Run `forkyard gc` once the load is over."
            ) from error

    async def running(self) -> tuple[RunningSandbox, ...]:
        """List the sandboxes that are alive on this machine, whoever started them."""
        found = []
        for folder in sorted(self._layout.workspaces.glob("*/sandbox")):
            workspace = WorkspaceId(folder.parent.name)
            async with self._lock(workspace):
                shim = await self._attach(workspace)
            if shim is not None and shim.is_furnished:
                found.append(
                    RunningSandbox(workspace=workspace, epoch=shim.epoch, execs=tuple(shim.ended))
                )
        return tuple(found)

    def recorded_result(self, workspace: WorkspaceId, exec_id: ExecId) -> ExecResult | None:
        """Read an exec's durable exit record; None while it has none."""
        record = read_record(str(self._layout.exec(workspace, exec_id)))
        return None if record is None else result_of(record)

    async def close(self) -> None:
        """Let go of every connection; sandboxes go on, the fork-server ends by itself."""
        for shim in list(self._shims.values()):
            if shim.task is not None:
                shim.task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await shim.task
            shim.writer.close()  # a follower that was cancelled before it began did not
        self._fork_server.drop_lease()
        hierarchies = detect()
        if hierarchies is not None:
            cgroups.remove_parent(hierarchies)

    def _lock(self, workspace: WorkspaceId) -> asyncio.Lock:
        return self._locks.setdefault(workspace, asyncio.Lock())

    async def _attach(self, workspace: WorkspaceId) -> Shim | None:
        known = self._shims.get(workspace)
        if known is not None and not known.closed.is_set():
            return known
        path = self._layout.sandbox(workspace) / SOCKET
        try:
            reader, writer = await open_connection(path, None)
            async with asyncio.timeout(_START_SECONDS):
                hello = await read_message(reader)
        except (OSError, TimeoutError):
            return None
        if hello is None or hello.get("trouble"):
            writer.close()
            return None
        other = self._shims.get(workspace)
        if other is not None and not other.closed.is_set():
            writer.close()
            return other
        shim = Shim(workspace, hello["epoch"], reader, writer)
        shim.is_furnished = hello["furnished"]
        self._shims[workspace] = shim
        self._listen(shim)
        return shim


def _without_files(spec: SandboxSpec) -> SandboxSpec:
    """Give what of a spec a sandbox must be made for; the rest comes with files and commands."""
    environment = replace(spec.environment, variables={}, host_packages=None)
    return replace(spec, layers=(), environment=environment)


def _is_plain(spec: ExecSpec) -> bool:
    """Say whether nobody but its files is attached to a command."""
    is_attached = spec.has_input or spec.attended or spec.terminal is not None
    return not is_attached and spec.copy is None
