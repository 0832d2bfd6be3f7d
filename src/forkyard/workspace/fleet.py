"""The local fleet: sandboxes on this machine, by way of the fork-server and its shims.

It keeps one connection per running sandbox. A connection that breaks says nothing about the
sandbox; what counts is whether its shim answers again, and after that the exit records.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from pathlib import Path

from forkyard import __version__
from forkyard.base.durable import failpoint
from forkyard.base.process import start_detached
from forkyard.config import Layout
from forkyard.errors import WorkspaceError
from forkyard.model.execution import ExecResult, ExecSpec
from forkyard.model.ids import ExecId, WorkspaceId
from forkyard.shim import cgroups, kernel
from forkyard.shim.main import PID_FILE, SOCKET
from forkyard.shim.protocol import Message
from forkyard.shim.records import SPEC, read_record
from forkyard.workspace.drivers.oci import exec_document, sandbox_document
from forkyard.workspace.interface import Isolation, RunningSandbox, SandboxSpec
from forkyard.workspace.runtime import RUNTIMES, Runtime, RuntimeProbe
from forkyard.workspace.shims import (
    Shim,
    interrupted,
    is_shim_of,
    last_words,
    open_connection,
    read_message,
    result_of,
)

_CONNECT_SECONDS = 5.0
_START_SECONDS = 60.0
_STOP_SECONDS = 60.0
"""Unmounting flushes what the workspace wrote; a slow disk may take this long."""
_FORK_SERVER_SECONDS = 10.0
_FORK_SERVER_PROGRAM = (
    "import os, sys; sys.path.insert(0, os.environ['FORKYARD_PACKAGE']); "
    "from forkyard.shim.fork_server import run; run(os.environ['FORKYARD_FLEET'])"
)
"""Isolated mode, so that nothing of the caller's folder or user settings is imported; no path as
an argument, since everybody may read those."""


class LocalFleet:
    """Sandboxes on this machine (workspace/interface.py has the contract)."""

    def __init__(self, layout: Layout, *, runtimes: tuple[str, ...] = RUNTIMES) -> None:
        """Keep where everything lies and what may be used; nothing is started yet."""
        self._layout = layout
        self._shims: dict[WorkspaceId, Shim] = {}
        self._locks: dict[WorkspaceId, asyncio.Lock] = {}
        self._lease: asyncio.StreamWriter | None = None
        self._lease_reader: asyncio.StreamReader | None = None
        self._lease_lock = asyncio.Lock()
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
                if known.epoch == spec.epoch:
                    known.disk_bytes = spec.limits.disk_bytes
                    return
                await self._stop(known)
            runtime = await self._probe.runtime()
            shim = await self._start(spec, runtime)
            self._shims[spec.workspace] = shim

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
            self._drop_lease()
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
        reader, writer = await self._fork_server({"op": "start", "spec": str(path)})
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
                    case "stopped":
                        break
                    case _:
                        continue
        finally:
            if self._shims.get(shim.workspace) is shim:
                del self._shims[shim.workspace]
            shim.writer.close()
            shim.closed.set()
            for future in shim.ended.values():
                if not future.done():
                    future.cancel()

    async def _fork_server(
        self, request: Message
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        for last in (False, True):
            await self._hold_lease()
            try:
                return await open_connection(self._layout.fleet_socket, request)
            except OSError as error:
                # It died a moment ago: another one is started, running shims do not care.
                self._drop_lease()
                if last:
                    message = f"cannot reach the fork-server: {error}"
                    raise WorkspaceError(message, hint="Look into server.log.") from error
        raise AssertionError("unreachable")

    def _drop_lease(self) -> None:
        if self._lease is not None:
            self._lease.close()
        self._lease = self._lease_reader = None

    async def _hold_lease(self) -> None:
        async with self._lease_lock:
            if self._lease_reader is not None and not self._lease_reader.at_eof():
                return
            self._drop_lease()
            if not await self._take_lease():
                self._start_fork_server()
                loop = asyncio.get_running_loop()
                deadline = loop.time() + _FORK_SERVER_SECONDS
                while not await self._take_lease():
                    if loop.time() > deadline:
                        raise WorkspaceError(
                            "cannot start the fork-server: it does not answer",
                            hint=f"Look into {self._layout.server_log}.",
                        )
                    await asyncio.sleep(0.005)  # until the new process has bound its socket

    async def _take_lease(self) -> bool:
        try:
            reader, writer = await open_connection(
                self._layout.fleet_socket, {"op": "lease", "version": __version__}
            )
            async with asyncio.timeout(_CONNECT_SECONDS):
                answer = await read_message(reader)
        except (OSError, TimeoutError):
            return False
        if answer is None or answer.get("version") != __version__:
            writer.close()
            return False
        self._lease, self._lease_reader = writer, reader
        return True

    def _start_fork_server(self) -> None:
        package = Path(__file__).resolve().parents[2]
        start_detached(
            [
                sys.executable,
                "-IS",
                "-c",
                _FORK_SERVER_PROGRAM,
            ],
            variables={
                "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
                "LC_ALL": "C.UTF-8",
                "FORKYARD_PACKAGE": str(package),
                "FORKYARD_FLEET": str(self._layout.fleet_socket),
            },
            log=str(self._layout.server_log),
        )

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

    async def kill_exec(
        self, workspace: WorkspaceId, exec_id: ExecId, *, epoch: int, grace_seconds: float = 5.0
    ) -> None:
        """End one exec and everything it left behind: TERM, grace, KILL. Idempotent."""
        shim = await self._attach(workspace)
        if shim is not None and shim.epoch == epoch:
            shim.send({"op": "kill", "exec": exec_id, "grace": grace_seconds})

    async def stop(self, workspace: WorkspaceId, *, epoch: int) -> None:
        """End a sandbox and all that is in it. Idempotent, also when it never ran.

        Raises:
            WorkspaceError: Something of it is still there after a bounded wait.
        """
        async with self._lock(workspace):
            shim = await self._attach(workspace)
            if shim is not None:
                await self._stop(shim)
                epoch = max(epoch, shim.epoch)
            await self._end_process(workspace)
            await self._sweep(workspace, epoch)
        self._locks.pop(workspace, None)

    async def _stop(self, shim: Shim) -> None:
        with contextlib.suppress(OSError):
            shim.send({"op": "stop"})
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_STOP_SECONDS):
                await shim.closed.wait()

    async def _end_process(self, workspace: WorkspaceId) -> None:
        """Kill a shim that does not answer, and wait until it and its mounts are gone."""
        sandbox = self._layout.sandbox(workspace)
        with contextlib.suppress(OSError, ValueError):
            pid = int((sandbox / PID_FILE).read_text(encoding="ascii"))
            descriptor = kernel.pidfd_open(pid)
            try:
                if not is_shim_of(pid, sandbox):
                    return
                loop = asyncio.get_running_loop()
                gone = asyncio.Event()
                loop.add_reader(descriptor, gone.set)
                try:
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(1.0):
                            await gone.wait()  # it said `stopped` and is on its way out
                            return
                    kernel.pidfd_send_signal(descriptor, signal.SIGKILL)
                    async with asyncio.timeout(_STOP_SECONDS):
                        await gone.wait()
                finally:
                    loop.remove_reader(descriptor)
            finally:
                os.close(descriptor)

    async def _sweep(self, workspace: WorkspaceId, epoch: int) -> None:
        hierarchies = cgroups.detect()
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
            if shim is not None:
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
        self._drop_lease()

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
        self._shims[workspace] = shim
        self._listen(shim)
        return shim
