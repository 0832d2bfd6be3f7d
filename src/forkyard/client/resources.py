"""Templates, snapshots and runs in the SDK."""

from __future__ import annotations

import asyncio
import contextlib
import os
import stat
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import TypeVar

from forkyard.client.connection import Connection
from forkyard.client.events import Events
from forkyard.errors import ConfigError, ConflictError, NotFoundError, WorkspaceError
from forkyard.wire.bodies import Nothing
from forkyard.wire.errors import request_of
from forkyard.wire.results import (
    FINAL_RUN_STATES,
    QuickRequest,
    RunInfo,
    RunSummary,
    SubmitRequest,
)
from forkyard.wire.schema import (
    BuildRequest,
    SnapshotInfo,
    SnapshotRequest,
    TemplateInfo,
    TemplateRequest,
)

LOOK_SECONDS = 0.2
SPENDING_SECONDS = 1.0
MOST_FILE_BYTES = 1024**2
"""Of a task or template file, as the strict loader takes them."""

T = TypeVar("T")


class Templates:
    """All templates of an installation."""

    def __init__(self, connection: Connection) -> None:
        """Keep the connection."""
        self._connection = connection

    async def apply(self, file: str | Path, *, name: str | None = None) -> TemplateInfo:
        """Keep a template file's recipe under a name (by default the file's own).

        Raises:
            ConfigError: With every problem of the file.
        """
        path = absolute(file)
        text = await asyncio.to_thread(read_text, path)
        return await self.apply_text(text, name=name or path.stem, file=str(path))

    async def apply_text(self, text: str, *, name: str, file: str) -> TemplateInfo:
        """Keep a recipe given as text; relative paths in it start at the file's folder."""
        return await self._connection.ask(
            "POST",
            "/v1/templates",
            TemplateInfo,
            body=request_of(TemplateRequest, name=name, text=text, file=file),
            may_repeat=True,
        )

    async def build(
        self,
        name: str,
        *,
        values: Mapping[str, str] | None = None,
        timeout_seconds: float | None = None,
    ) -> TemplateInfo:
        """Build a template, with other values of its `vars` or not, and wait for its snapshot.

        Raises:
            WorkspaceError: The build failed; the log says more.
        """
        await self.begin_build(name, values=values)
        return await self.wait_until_built(name, timeout_seconds=timeout_seconds)

    async def wait_until_built(
        self, name: str, *, timeout_seconds: float | None = None
    ) -> TemplateInfo:
        """Wait for the end of a build that was begun; raises as `build`."""
        template = await _until(
            lambda: self.get(name), lambda one: one.state != "building", timeout_seconds
        )
        # A build with other values leaves a template as it was: applied, where never built else.
        if template.state not in ("ready", "applied") or template.last_build is None:
            raise WorkspaceError(
                template.trouble or f"cannot build template {name}: it is {template.state}",
                hint=f"See its log with `forkyard template show {name} --log`.",
            )
        return template

    async def begin_build(
        self, name: str, *, values: Mapping[str, str] | None = None
    ) -> TemplateInfo:
        """Start a build and return at once."""
        return await self._connection.ask(
            "POST",
            f"/v1/templates/{part(name)}/build",
            TemplateInfo,
            body=request_of(BuildRequest, vars=dict(values or {})),
            may_repeat=True,
        )

    def log(self, name: str, *, follow: bool = False) -> AsyncIterator[bytes]:
        """Give the log of the newest build as it comes."""
        return self._connection.stream(
            f"/v1/templates/{part(name)}/log", query={"follow": _flag(follow)}
        )

    async def get(self, name: str) -> TemplateInfo:
        """Find a template by name or id."""
        return await self._connection.ask("GET", f"/v1/templates/{part(name)}", TemplateInfo)

    async def list(self) -> list[TemplateInfo]:
        """List templates."""
        return await self._connection.ask_list("/v1/templates", TemplateInfo)

    async def delete(self, name: str) -> None:
        """Remove a template; snapshots of it stay."""
        await self._connection.ask("DELETE", f"/v1/templates/{part(name)}", Nothing)


class Snapshots:
    """All snapshots of an installation."""

    def __init__(self, connection: Connection) -> None:
        """Keep the connection."""
        self._connection = connection

    async def create(self, name: str, *, workspace: str) -> SnapshotInfo:
        """Take a snapshot of a workspace."""
        return await self._connection.ask(
            "POST",
            "/v1/snapshots",
            SnapshotInfo,
            body=request_of(SnapshotRequest, name=name, workspace=workspace),
        )

    async def wait_until_ready(
        self, name: str, *, timeout_seconds: float | None = None
    ) -> SnapshotInfo:
        """Wait until a snapshot can be forked.

        Raises:
            NotFoundError: No such snapshot.
            WorkspaceError: Taking it failed.
            ConflictError: It was not ready in time.
        """
        snapshot = await _until(
            lambda: self.get(name), lambda one: one.state != "pending", timeout_seconds
        )
        if snapshot.state != "ready":
            raise WorkspaceError(
                snapshot.trouble or f"cannot use snapshot {name}: it is {snapshot.state}",
                hint=f"See `forkyard snapshot show {name}`.",
            )
        return snapshot

    async def get(self, name: str) -> SnapshotInfo:
        """Find a snapshot by name or id."""
        return await self._connection.ask("GET", f"/v1/snapshots/{part(name)}", SnapshotInfo)

    async def list(self, *, everything: bool = False) -> list[SnapshotInfo]:
        """List snapshots; with `everything` also derived ones."""
        query = {"all": "true"} if everything else None
        return await self._connection.ask_list("/v1/snapshots", SnapshotInfo, query=query)

    async def delete(self, name: str) -> None:
        """Remove a snapshot that nothing uses."""
        await self._connection.ask("DELETE", f"/v1/snapshots/{part(name)}", Nothing)


class Runs:
    """All runs of an installation."""

    def __init__(self, connection: Connection, events: Events) -> None:
        """Keep the connection and the event stream."""
        self._connection = connection
        self._events = events

    async def submit_file(self, file: str | Path) -> RunInfo:
        """Submit a task file; the run goes on by itself.

        Raises:
            ConfigError: With every problem of the file.
        """
        path = absolute(file)
        text = await asyncio.to_thread(read_text, path)
        return await self._submit(SubmitRequest(text=text, file=str(path)))

    async def submit(self, request: QuickRequest) -> RunInfo:
        """Submit the quick form."""
        return await self._submit(SubmitRequest(quick=request))

    async def _submit(self, request: SubmitRequest) -> RunInfo:
        return await self._connection.ask("POST", "/v1/runs", RunInfo, body=request)

    async def get(self, run: str) -> RunInfo:
        """Find a run by id, abbreviation or name; `last` is the newest."""
        return await self._connection.ask("GET", f"/v1/runs/{part(run)}", RunInfo)

    async def list(self) -> list[RunSummary]:
        """List runs."""
        return await self._connection.ask_list("/v1/runs", RunSummary)

    async def watch(self, run: str) -> AsyncIterator[RunInfo]:
        """Give the run now and as it changes, until it is over.

        On the way files and tests are left out; the first and the last one are whole.
        """
        info = await self.get(run)
        yield info
        if is_over(info):
            return
        changed = asyncio.Event()

        async def listen() -> None:
            # The first change is that the stream stands: asked again then, none is missed.
            async for _ in self._events.changes(run=info.id):
                changed.set()

        listening = asyncio.ensure_future(listen())
        listening.add_done_callback(lambda _: changed.set())
        try:
            while not is_over(info):
                # what agents spend and wait for is no entry of the journal
                pause = SPENDING_SECONDS if is_spending(info) else None
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(pause):
                        await changed.wait()
                if listening.done():
                    listening.result()
                changed.clear()
                newer = await self._brief(info.id)
                if is_over(newer):
                    newer = await self.get(info.id)
                if newer != info:
                    info = newer
                    yield info
                # A run of many attempts changes faster than anybody looks.
                await asyncio.sleep(LOOK_SECONDS)
        finally:
            listening.cancel()

    async def _brief(self, run: str) -> RunInfo:
        return await self._connection.ask(
            "GET", f"/v1/runs/{part(run)}", RunInfo, query={"brief": "true"}
        )

    async def wait(self, run: str) -> RunInfo:
        """Wait until a run is over, its attempts' workspaces removed."""
        info: RunInfo | None = None
        async for one in self.watch(run):
            info = one
        if info is None:
            raise NotFoundError(f"cannot find run {run!r}: no such run")
        return info

    async def cancel(self, run: str) -> RunInfo:
        """Ask a run to end; what was found is kept."""
        return await self._post(run, "cancel")

    async def retry(self, run: str) -> RunInfo:
        """Start again what trouble of ours ended."""
        return await self._post(run, "retry")

    async def regrade(self, run: str) -> RunInfo:
        """Evaluate the candidates again."""
        return await self._post(run, "regrade")

    async def _post(self, run: str, verb: str) -> RunInfo:
        return await self._connection.ask("POST", f"/v1/runs/{part(run)}/{verb}", RunInfo)

    def log(
        self, attempt: str, *, stream: str = "stdout", follow: bool = False
    ) -> AsyncIterator[bytes]:
        """Give what an attempt's agent printed, as it comes."""
        return self._connection.stream(
            f"/v1/attempts/{part(attempt)}/log", query={"stream": stream, "follow": _flag(follow)}
        )

    async def trajectory(self, attempt: str) -> bytes:
        """Give an attempt's transcript (JSON), in the one shape that all agents' have."""
        return await self._connection.send("GET", f"/v1/attempts/{part(attempt)}/trajectory")


async def _until(
    ask: Callable[[], Awaitable[T]], is_done: Callable[[T], bool], timeout_seconds: float | None
) -> T:
    deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
    while not is_done(found := await ask()):
        if deadline is not None and time.monotonic() > deadline:
            raise ConflictError(
                f"cannot wait any longer: it is not done after {timeout_seconds:g} s",
                hint="Give it more time; the server goes on with it.",
            )
        await asyncio.sleep(LOOK_SECONDS)
    return found


def is_spending(run: RunInfo) -> bool:
    """Say whether an attempt of a run is let in at the gateway now."""
    return any(one.live is not None for task in run.tasks for one in task.attempts)


def is_over(run: RunInfo) -> bool:
    """Say whether nothing of a run will change any more by itself."""
    return run.state in FINAL_RUN_STATES


def absolute(path: str | Path) -> Path:
    """Give a path as seen from anywhere."""
    return Path(path).absolute()


def read_text(path: Path) -> str:
    """Read a file that a person wrote.

    Raises:
        NotFoundError: It is not there.
        ConfigError: It is no ordinary file of a sensible size with UTF-8 text.
    """
    hint = "Name a YAML file of yours."
    try:
        # A pipe or a device could keep us for ever.
        with open(path, "rb", opener=_at_once) as file:
            found = os.fstat(file.fileno())
            if not stat.S_ISREG(found.st_mode):
                raise ConfigError(f"cannot read {path}: it is no ordinary file", hint=hint)
            if found.st_size > MOST_FILE_BYTES:
                raise ConfigError(
                    f"cannot read {path}: it has {found.st_size} bytes, at most {MOST_FILE_BYTES}"
                    " are accepted",
                    hint=hint,
                )
            return file.read(MOST_FILE_BYTES).decode("utf-8")
    except FileNotFoundError as error:
        raise NotFoundError(f"cannot read {path}: no such file", hint=hint) from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"cannot read {path}: it is not UTF-8 text", hint=hint) from error
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}", hint=hint) from error


def part(text: str) -> str:
    """Check that an id or name can be a part of a route.

    Raises:
        NotFoundError: Nothing can have that name.
    """
    if not text or "/" in text:
        raise NotFoundError(
            f"cannot find {text!r}: an id or a name is never empty and has no '/'",
            hint="See the `list` of the things meant, or `forkyard status` for runs.",
        )
    return text


def _at_once(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)


def _flag(value: bool) -> str:
    return "true" if value else "false"
