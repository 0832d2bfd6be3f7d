"""Workspaces in the SDK: fork, run commands, take the change home, delete whatever happens."""

from __future__ import annotations

import asyncio
import base64
import contextlib
from collections.abc import AsyncIterable, AsyncIterator, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from forkyard.client.connection import Connection
from forkyard.client.live import opened, outcome_of
from forkyard.client.living import Living
from forkyard.client.resources import part
from forkyard.client.results import ExecOutcome, Patch
from forkyard.client.session import Session
from forkyard.errors import ForkyardError, NotFoundError, WorkspaceError
from forkyard.model.ids import new_exec_id
from forkyard.model.workspace import NetworkPolicy
from forkyard.wire.bodies import Nothing
from forkyard.wire.errors import request_of
from forkyard.wire.schema import PatchInfo, SnapshotInfo, SnapshotRequest
from forkyard.wire.spaces import (
    ExecInfo,
    ExecRequest,
    LimitsRequest,
    WorkspaceInfo,
    WorkspaceRequest,
)

CLEAN_UP_SECONDS = 60.0
"""Deleting ends a sandbox (TERM, grace, KILL) and renames two directories; more is a stuck disk."""


class Workspace(Living):
    """One workspace, as a handle. Not thread-safe."""

    def __init__(self, connection: Connection, info: WorkspaceInfo) -> None:
        """Keep the connection and what the server said last."""
        self._connection = connection
        self.info = info
        """As of the last answer about the workspace itself."""

    async def exec(
        self,
        command: str | Sequence[str],
        *,
        working_directory: str | None = None,
        variables: Mapping[str, str] | None = None,
        timeout_seconds: float | None = None,
        keep_background: bool = True,
        exec_id: str | None = None,
        input: bytes | AsyncIterable[bytes] | None = None,  # noqa: A002 - what it is called everywhere
        as_root: bool = False,
    ) -> ExecOutcome:
        """Run a command to its end; the sandbox is started if it is not running.

        A command that fails is a result. Should the server go away meanwhile, the call finds it
        again and attaches to the same command: it never runs twice.

        Args:
            command: A text for ``/bin/sh -c``, or a program and its arguments.
            working_directory: Absolute; by default the repository.
            variables: Added to the workspace's environment.
            timeout_seconds: After this, TERM, a grace, KILL to all it started.
            keep_background: Whether what it leaves running goes on.
            exec_id: To attach to a command that was started with it before.
            input: For its standard input, which ends after it; by default there is none. Such a
                call is not repeated should the server go away: the command goes on without it.
            as_root: As root of the workspace; only where its image is its own.

        Returns:
            Exit status and output.

        Raises:
            NotFoundError: The workspace is gone.
            WorkspaceError: The sandbox could not run it.

        Cancellation:
            The command is killed (bounded) before the cancellation goes on.
        """
        request = request_of(
            ExecRequest,
            id=exec_id or new_exec_id(),
            command=command if isinstance(command, str) else None,
            argv=None if isinstance(command, str) else list(command),
            working_directory=working_directory,
            variables=dict(variables or {}),
            timeout_seconds=timeout_seconds,
            keep_background=keep_background,
            as_root=as_root,
            **({} if input is None else {"has_input": True, "attended": True}),
        )
        if input is not None:
            return await self._exec_with_input(request, input)
        try:
            info = await self._connection.ask(
                "POST",
                f"/v1/workspaces/{self.id}/execs",
                ExecInfo,
                body=request,
                may_repeat=True,
            )
        except asyncio.CancelledError:
            await _bounded(self._kill(request.id))
            raise
        return outcome_of(
            info,
            await self._output(info, "stdout", info.stdout),
            await self._output(info, "stderr", info.stderr),
        )

    async def _exec_with_input(
        self, request: ExecRequest, source: bytes | AsyncIterable[bytes]
    ) -> ExecOutcome:
        parts: dict[str, list[bytes]] = {"stdout": [], "stderr": []}
        async with opened(self._connection, self.id, request) as one:
            try:
                async with asyncio.TaskGroup() as group:
                    feeding = group.create_task(one.feed(source))
                    async for stream, chunk in one.output():
                        parts[stream].append(chunk)
                    feeding.cancel()
            except asyncio.CancelledError:
                await _bounded(self._kill(request.id))
                raise
            except BaseExceptionGroup as group_error:
                raise group_error.exceptions[0] from None
            return await one.outcome(b"".join(parts["stdout"]), b"".join(parts["stderr"]))

    async def _kill(self, exec_id: str) -> None:
        with contextlib.suppress(ForkyardError):
            await self._connection.ask("POST", f"/v1/execs/{exec_id}/kill", ExecInfo)

    async def _output(self, info: ExecInfo, stream: str, inline: str | None) -> bytes:
        if inline is not None:
            return base64.b64decode(inline)
        return await self._connection.send(
            "GET", f"/v1/execs/{info.id}/output", query={"stream": stream}
        )

    async def execs(self) -> list[ExecInfo]:
        """List the commands that were run in it, oldest first, without their output."""
        return await self._connection.ask_list(f"/v1/workspaces/{self.id}/execs", ExecInfo)

    def output(
        self, exec_id: str, *, stream: str = "stdout", follow: bool = False
    ) -> AsyncIterator[bytes]:
        """Give what a command prints, as it comes."""
        query = {"stream": stream, "follow": "true" if follow else "false"}
        return self._connection.stream(f"/v1/execs/{exec_id}/output", query=query)

    async def stop(self) -> None:
        """End its sandbox and every process in it; its files stay."""
        self.info = await self._connection.ask(
            "POST", f"/v1/workspaces/{self.id}/stop", WorkspaceInfo, may_repeat=True
        )

    async def snapshot(self, name: str) -> SnapshotInfo:
        """Take a snapshot under a name."""
        return await self._connection.ask(
            "POST",
            "/v1/snapshots",
            SnapshotInfo,
            body=request_of(SnapshotRequest, name=name, workspace=self.id),
        )

    async def patch(self) -> Patch:
        """Stop the workspace and collect its change from outside, against its snapshot.

        Nothing in the workspace is asked: no git runs in it.
        """
        info = await self._connection.ask(
            "POST", f"/v1/workspaces/{self.id}/patch", PatchInfo, may_repeat=True
        )
        return Patch(
            content=base64.b64decode(info.patch),
            sha256=info.patch_sha256,
            status=info.status,
            base_tree=info.base_tree,
            result_tree=info.result_tree,
            files=tuple(one.path for one in info.files),
            problems=tuple(info.problems),
        )

    async def save_patch(self, path: str | Path) -> Patch:
        """Collect the change, as `patch` does, and write it to a file."""
        patch = await self.patch()
        await asyncio.to_thread(Path(path).write_bytes, patch.content)
        return patch

    async def delete(self) -> None:
        """Remove it from the host; one that is gone already is fine.

        Cancellation:
            Finished (bounded) before the cancellation goes on.
        """
        await _bounded(self._delete())

    async def _delete(self) -> None:
        with contextlib.suppress(NotFoundError):
            await self._connection.ask("DELETE", f"/v1/workspaces/{self.id}", Nothing)


class Workspaces:
    """All workspaces of an installation."""

    def __init__(self, connection: Connection, session: Session) -> None:
        """Keep the connection, and the session that ephemeral ones live in."""
        self._connection = connection
        self._session = session

    async def create(
        self,
        *,
        snapshot: str | None = None,
        template: str | None = None,
        display_name: str = "",
        ephemeral: bool = False,
        network: NetworkPolicy | str | None = None,
        allow: Sequence[str] = (),
        limits: LimitsRequest | None = None,
        budget_tokens: int | None = None,
        budget_usd: float | None = None,
        start: bool = False,
        values: Mapping[str, str] | None = None,
        idle_stop_seconds: float | None = None,
        ttl_seconds: float | None = None,
    ) -> Workspace:
        """Fork a workspace; by default nothing runs in it until the first command.

        Args:
            snapshot: Name or id; or else
            template: the snapshot of this template's newest build.
            display_name: For people.
            ephemeral: Deleted when this client goes, however it goes.
            network: `none`, `open`, `allowlist`, or `gateway`: the models, under their providers'
                names, without a key. Default: as the template says, else `none`.
            allow: Hosts such as ``example.org`` or ``*.example.org:8443``, for an allowlist.
            limits: What differs from the snapshot's.
            budget_tokens: With network `gateway`: most that it may spend in all.
            budget_usd: The same in US dollars.
            start: Bring its sandbox up at once, since a command follows.
            values: With template: of its `vars`, as it was built with.
            idle_stop_seconds: Stop it when nothing has happened in it for so long.
            ttl_seconds: Delete it with all it holds that long from now.

        Raises:
            NotFoundError: No such snapshot or template.
            ConflictError: It is not ready.
        """
        if ephemeral:
            self._session.begin()
        info = await self._connection.ask(
            "POST",
            "/v1/workspaces",
            WorkspaceInfo,
            body=request_of(
                WorkspaceRequest,
                snapshot=snapshot,
                template=template,
                display_name=display_name,
                ephemeral=ephemeral,
                network=None if network is None else NetworkPolicy(network),
                allow=list(allow),
                limits=limits,
                session=self._session.id if ephemeral else None,
                budget_tokens=budget_tokens,
                budget_micro_usd=None if budget_usd is None else round(budget_usd * 1_000_000),
                start=start,
                vars=dict(values or {}),
                idle_stop_seconds=idle_stop_seconds,
                ttl_seconds=ttl_seconds,
            ),
        )
        return Workspace(self._connection, info)

    @asynccontextmanager
    async def run(
        self,
        *,
        snapshot: str | None = None,
        template: str | None = None,
        display_name: str = "",
        ephemeral: bool = True,
        network: NetworkPolicy | str | None = None,
        allow: Sequence[str] = (),
        limits: LimitsRequest | None = None,
        budget_tokens: int | None = None,
        budget_usd: float | None = None,
    ) -> AsyncIterator[Workspace]:
        """Fork a workspace for a ``with`` block; an ephemeral one is deleted in the end.

        Cancellation:
            The deletion is finished (bounded) whatever ended the block.
        """
        creating = asyncio.ensure_future(
            self.create(
                snapshot=snapshot,
                template=template,
                display_name=display_name,
                ephemeral=ephemeral,
                network=network,
                allow=allow,
                limits=limits,
                budget_tokens=budget_tokens,
                budget_usd=budget_usd,
                start=True,
            )
        )
        try:
            workspace = await asyncio.shield(creating)
        except asyncio.CancelledError:
            await _bounded(_delete_when_made(creating))
            raise
        try:
            yield workspace
        finally:
            if ephemeral:
                await workspace.delete()

    async def get(self, workspace: str) -> Workspace:
        """Find a workspace by id, abbreviation or display name."""
        info = await self._connection.ask("GET", f"/v1/workspaces/{part(workspace)}", WorkspaceInfo)
        return Workspace(self._connection, info)

    async def list(self, *, everything: bool = False, usage: bool = False) -> list[WorkspaceInfo]:
        """List workspaces.

        Args:
            everything: Also those that serve runs.
            usage: Also what each takes on disk, and how long it has been idle.
        """
        query = {
            **({"all": "true"} if everything else {}),
            **({"usage": "true"} if usage else {}),
        }
        return await self._connection.ask_list("/v1/workspaces", WorkspaceInfo, query=query)


async def _delete_when_made(creating: asyncio.Future[Workspace]) -> None:
    with contextlib.suppress(ForkyardError):
        await (await creating).delete()


async def _bounded(work: Coroutine[object, object, None]) -> None:
    """Finish a clean-up whatever happens to the caller, but not for ever."""
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    deadline = asyncio.get_running_loop().time() + CLEAN_UP_SECONDS
    while not task.done():
        left = deadline - asyncio.get_running_loop().time()
        if left <= 0:
            task.cancel()
            raise WorkspaceError(
                f"cannot clean up: the server has not answered for {CLEAN_UP_SECONDS:g} s",
                hint="See what is left with `forkyard workspace list`.",
            )
        try:
            await asyncio.wait({task}, timeout=left)
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        if not task.cancelled():
            task.exception()  # looked at: the cancellation is what the caller hears of
        raise cancelled
    task.result()
