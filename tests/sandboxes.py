"""Real sandboxes for tests: a fleet over a temporary state directory, without journal or server."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from forkyard.config import Layout
from forkyard.model.execution import ExecResult, ExecSpec
from forkyard.model.ids import (
    ExecId,
    LayerId,
    WorkspaceId,
    new_exec_id,
    new_layer_id,
    new_workspace_id,
)
from forkyard.model.workspace import Environment, Limits, NetworkPolicy
from forkyard.shim.ids import STORAGE_USER_ID
from forkyard.workspace.fleet import LocalFleet
from forkyard.workspace.interface import SandboxSpec
from forkyard.workspace.runtime import RUNTIMES

T = TypeVar("T")
PATH = "/usr/local/bin:/usr/bin:/bin"


@dataclass(frozen=True, slots=True)
class Output:
    """How a command in a sandbox ended, and what it printed."""

    result: ExecResult
    stdout: str
    stderr: str


class Box:
    """One running sandbox."""

    def __init__(self, fleet: LocalFleet, layout: Layout, spec: SandboxSpec) -> None:
        """Keep whose it is."""
        self.fleet = fleet
        self.layout = layout
        self.spec = spec

    @property
    def id(self) -> WorkspaceId:
        """Name of the workspace."""
        return self.spec.workspace

    def command(
        self,
        script: str,
        *,
        exec_id: ExecId | None = None,
        timeout_seconds: float | None = 60.0,
        grace_seconds: float = 5.0,
        variables: Mapping[str, str] | None = None,
        keep_background: bool = True,
        output_bytes: int = 1 << 28,
    ) -> ExecSpec:
        """Describe a shell command in the repository."""
        return ExecSpec(
            id=exec_id or new_exec_id(),
            workspace=self.id,
            argv=("/bin/sh", "-c", script),
            working_directory="/workspace/repo",
            variables={"PATH": PATH, "HOME": "/home/workspace", **(variables or {})},
            timeout_seconds=timeout_seconds,
            grace_seconds=grace_seconds,
            keep_background=keep_background,
            output_bytes=output_bytes,
        )

    async def run(self, spec: ExecSpec) -> Output:
        """Run a command to its end."""
        result = await self.fleet.exec(spec, epoch=self.spec.epoch)
        folder = self.layout.exec(self.id, spec.id)
        texts = [
            (folder / name).read_text(encoding="utf-8", errors="replace")
            if (folder / name).exists()
            else ""
            for name in ("stdout", "stderr")
        ]
        return Output(result, *texts)

    async def sh(self, script: str, **options: float) -> Output:
        """Run a shell command in the repository."""
        return await self.run(self.command(script, **options))  # type: ignore[arg-type]


def make_layer(layout: Layout, files: Mapping[str, str]) -> LayerId:
    """Put files below /workspace/repo into a layer of their own."""
    layer = new_layer_id()
    top = layout.layer(layer)
    (top / "workspace" / "repo").mkdir(parents=True)
    (top / "home" / "workspace").mkdir(parents=True)
    for name, content in files.items():
        path = top / "workspace" / "repo" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
    for folder, folders, names in os.walk(top):
        for name in (".", *folders, *names):
            os.chown(Path(folder, name), STORAGE_USER_ID, STORAGE_USER_ID, follow_symlinks=False)
    return layer


def prepare(home: Path) -> Layout:
    """Make the folders that a fleet expects."""
    layout = Layout(home)
    for folder in (layout.run, layout.layers, layout.workspaces, layout.trash):
        folder.mkdir(mode=0o700, exist_ok=True)
    return layout


@asynccontextmanager
async def open_fleet(
    home: Path, runtimes: tuple[str, ...] = RUNTIMES
) -> AsyncIterator[tuple[LocalFleet, Layout]]:
    """Give a fleet; its sandboxes are ended when it goes."""
    layout = prepare(home)
    fleet = LocalFleet(layout, runtimes=runtimes)
    try:
        yield fleet, layout
    finally:
        for sandbox in await fleet.running():
            await fleet.stop(sandbox.workspace, epoch=sandbox.epoch)
        await fleet.close()


def describe(
    layout: Layout,
    layer: LayerId,
    *,
    slot: int = 0,
    limits: Limits | None = None,
    network: NetworkPolicy = NetworkPolicy.NONE,
    providers: tuple[str, ...] = (),
    allow: tuple[str, ...] = (),
) -> SandboxSpec:
    """Describe a fresh workspace on one layer, its disk made."""
    workspace = new_workspace_id()
    for folder in (layout.upper(workspace), layout.disk(workspace) / "work"):
        folder.mkdir(parents=True)
    return SandboxSpec(
        workspace=workspace,
        epoch=1,
        layers=(layer,),
        slot=slot,
        environment=Environment(),
        limits=limits or Limits(),
        network=network,
        providers=providers,
        allow=allow,
    )


def in_box(
    home: Path,
    test: Callable[[Box], Awaitable[T]],
    *,
    files: Mapping[str, str] | None = None,
    limits: Limits | None = None,
    network: NetworkPolicy = NetworkPolicy.NONE,
    providers: tuple[str, ...] = (),
    runtimes: tuple[str, ...] = RUNTIMES,
) -> T:
    """Run a test against one sandbox, and end the sandbox whatever happens."""

    async def body() -> T:
        async with open_fleet(home, runtimes) as (fleet, layout):
            layer = make_layer(layout, files or {})
            spec = describe(layout, layer, limits=limits, network=network, providers=providers)
            await fleet.start(spec)
            return await test(Box(fleet, layout, spec))

    return asyncio.run(body())
