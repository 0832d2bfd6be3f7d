"""The lowest layer of what a template builds: home, workspace and the repository."""

from __future__ import annotations

import asyncio
import os
import posixpath
from collections.abc import Callable
from pathlib import Path

from forkyard.config import Layout
from forkyard.model.ids import LayerId
from forkyard.model.image import Image
from forkyard.model.workspace import (
    REPOSITORY,
    USER_HOME,
    WORKSPACE_ROOT,
    Environment,
    TemplateSpec,
)
from forkyard.shim.ids import STORAGE_FIRST_ID, STORAGE_USER_ID
from forkyard.workspace.image_base import lay_image_base
from forkyard.workspace.image_host import host_packages
from forkyard.workspace.layers import Layers
from forkyard.workspace.repository import Importer
from forkyard.workspace.toolchains import Toolchains, find_toolchains
from forkyard.workspace.variables import BUILT_IN_VARIABLES


class BaseLayers:
    """Makes them in one state directory."""

    def __init__(self, layout: Layout, layers: Layers, secret: Callable[[str], str | None]) -> None:
        """Keep the collaborators; nothing is made yet."""
        self._layers = layers
        self._importer = Importer(layout, secret)

    async def make(
        self,
        spec: TemplateSpec,
        layer: LayerId,
        say: Callable[[str], None],
        image: Image | None = None,
    ) -> Environment:
        """Make a layer, and say what commands above it start with.

        Args:
            spec: The recipe.
            layer: Named in the journal already.
            say: Told what a person should know.
            image: What stands below it; None with image `host`.

        Raises:
            UserError: The repository cannot be taken as asked.
            WorkspaceError: It could not be taken.
            OSError: The disk refused.

        Durability:
            The layer is on disk when this returns.
        """
        root = self._layers.start(layer)
        base = None
        if image is None:
            for folder in (USER_HOME, WORKSPACE_ROOT):
                _make_folder(root, folder)
        else:
            base = await asyncio.to_thread(lay_image_base, root, self._layers, image, say)
        for other in spec.additional_repositories:
            _make_parents(root, other.target)
            say(f"additional repository at {other.target}")
            await self._importer.take(other, root / other.target.lstrip("/"), say)
        variables = {**({} if base is None else base.variables), **spec.variables}
        source, tools = None, Toolchains()
        if spec.repository is not None:
            target = root / REPOSITORY.lstrip("/")
            source = await self._importer.take(spec.repository, target, say)
        if source is not None and base is None:
            tools = await asyncio.to_thread(find_toolchains, source)
            for mount in tools.mounts:
                say(f"shown read-only: {mount.target} ({mount.reason})")
            for note in tools.notes:
                say(note)
        if tools.path and "PATH" not in variables:
            variables["PATH"] = ":".join((*tools.path, BUILT_IN_VARIABLES["PATH"]))
        await self._layers.finish(layer)
        return Environment(
            variables=variables,
            mounts=tools.mounts,
            # An image's programs are not this machine's, and know nothing of its paths.
            repository_source=source if base is None else None,
            host_packages=await asyncio.to_thread(host_packages) if base is None else None,
            image=None if base is None else base.root,
        )


def _make_parents(root: Path, target: str) -> None:
    """Make the folders between the workspace's root and a target, for the user."""
    path = root / WORKSPACE_ROOT.lstrip("/")
    for name in posixpath.relpath(posixpath.dirname(target), WORKSPACE_ROOT).split("/"):
        path = path / name
        if not path.is_dir():
            path.mkdir(mode=0o755)
            os.chown(path, STORAGE_USER_ID, STORAGE_USER_ID)


def _make_folder(root: Path, folder: str) -> None:
    """Make a folder for the user, those above it for the sandbox's root."""
    path = root
    *above, last = folder.strip("/").split("/")
    for name in above:
        path = path / name
        path.mkdir(exist_ok=True)
        path.chmod(0o755)
        os.chown(path, STORAGE_FIRST_ID, STORAGE_FIRST_ID)
    path = path / last
    path.mkdir()
    path.chmod(0o755)
    os.chown(path, STORAGE_USER_ID, STORAGE_USER_ID)
