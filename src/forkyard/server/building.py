"""Template builds that go on while the request that began them is answered."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from pathlib import Path

from forkyard.errors import ForkyardError
from forkyard.model.workspace import Snapshot, Template, TemplateSpec, TemplateState
from forkyard.workspace.templates import Templates

_LOG = logging.getLogger(__name__)


class TemplateBuilds:
    """Implements `TemplateService`."""

    def __init__(self, templates: Templates) -> None:
        """Keep the real templates; no build is going on yet."""
        self._templates = templates
        self._builds: set[asyncio.Task[Template]] = set()

    async def apply(self, name: str, spec: TemplateSpec) -> Template:
        """Keep a recipe under a name."""
        return await self._templates.apply(name, spec)

    async def begin_build(self, name: str, values: Mapping[str, str] | None = None) -> Template:
        """Start a build and return once the journal says so; one that goes on is kept.

        Raises:
            ForkyardError: It could not even begin.
        """
        row = self._templates.get(name)
        if row.state is TemplateState.BUILDING:
            return row
        build = asyncio.create_task(self._templates.build(name, values), name=f"build {name}")
        self._builds.add(build)
        build.add_done_callback(self._over)
        while not build.done():
            found = self._templates.get(name)
            if found.state is TemplateState.BUILDING:
                return found
            await asyncio.sleep(0.01)
        if build.exception() is not None and self._templates.get(name) == row:
            build.result()
        return self._templates.get(name)

    def _over(self, build: asyncio.Task[Template]) -> None:
        self._builds.discard(build)
        if build.cancelled():
            return
        error = build.exception()
        if error is not None and not isinstance(error, ForkyardError):
            _LOG.error("Bug in %s", build.get_name(), exc_info=error)

    def built(self, name: str, values: Mapping[str, str]) -> Snapshot | None:
        """Give the newest ready snapshot that a build with these values made."""
        return self._templates.built(name, values)

    async def delete(self, name: str) -> None:
        """Remove a recipe; snapshots of it stay."""
        await self._templates.delete(name)

    def log(self, name: str) -> Path:
        """Say where the log of its newest build lies."""
        return self._templates.log(self._templates.get(name))
