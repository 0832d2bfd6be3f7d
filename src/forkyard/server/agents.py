"""Routes about agents: which drivers there are, how they are installed, installing one."""

from __future__ import annotations

import asyncio
from pathlib import Path

from forkyard.agents.interface import AgentDriver
from forkyard.agents.mini_swe_agent import PYTHON, PYTHON_VERSIONS
from forkyard.agents.registry import driver_named, driver_names
from forkyard.base import process
from forkyard.errors import ConfigError, ForkyardError, NotFoundError
from forkyard.server.services import Services
from forkyard.server.table import Call
from forkyard.wire.drivers import (
    ArchiveInfo,
    DriverInfo,
    DriverReport,
    InstallProgress,
    InstallRequest,
)

MOST_PROBLEMS = 20
_PYTHON_SECONDS = 10.0


async def drivers(call: Call) -> list[DriverInfo]:
    """List the agent drivers of this version."""
    return [_info(call.services, driver_named(name)) for name in driver_names()]


async def check(call: Call) -> DriverReport:
    """Say how an agent is installed, comparing each of its files with what was unpacked."""
    return await _report(call.services, _found(call))


async def progress(call: Call) -> InstallProgress:
    """Say what is done to install an agent just now."""
    doing = call.services.agents.doing(_found(call).name)
    if doing is None:
        return InstallProgress()
    return InstallProgress(doing=doing.what, size_bytes=await asyncio.to_thread(doing.size_bytes))


async def install(call: Call) -> DriverReport:
    """Install an agent, from a folder or from the registries."""
    asked = call.asked(InstallRequest)
    driver = _found(call)
    await call.services.agents.install(
        driver.name,
        source=None if asked.source is None else Path(asked.source),
        variables=asked.variables,
    )
    return await _report(call.services, driver)


async def _python_here() -> str:
    """Say which Python the image `host` shows: this machine's own."""
    try:
        done = await process.run_async(
            [PYTHON, "-IS", "-c", "import sys; print(*sys.version_info[:3], sep='.')"],
            variables={"PATH": "/usr/bin:/bin"},
            timeout_seconds=_PYTHON_SECONDS,
        )
    except (ForkyardError, OSError):
        return f"{PYTHON} is not there, so the agent cannot start"
    version = done.stdout.decode("ascii", "replace").strip()
    if done.exit_code != 0 or not version:
        return f"{PYTHON} cannot be run, so the agent cannot start"
    if version.split(".")[:2] not in [[str(one) for one in known] for known in PYTHON_VERSIONS]:
        return f"{PYTHON} is {version}, with which the agent cannot start"
    return f"{PYTHON} is {version}, which will do"


def _found(call: Call) -> AgentDriver:
    try:
        return driver_named(call.parameters["name"])
    except ConfigError as error:
        raise NotFoundError(error.message, hint="See `forkyard agent list`.") from error


def _info(services: Services, driver: AgentDriver) -> DriverInfo:
    recipe = driver.recipe
    return DriverInfo(
        name=driver.name,
        summary=driver.title,
        version=None if recipe is None else recipe.version,
        provider=driver.api,
        model=driver.default_model,
        installed=None if recipe is None else services.agents.find(driver.name) is not None,
    )


async def _report(services: Services, driver: AgentDriver) -> DriverReport:
    info = _info(services, driver).model_dump()
    recipe = driver.recipe
    if recipe is None:
        return DriverReport(**info, notes=["nothing to install: its command is the user's own"])
    installed = services.agents.find(driver.name)
    problems: list[str] = []
    if installed is None:
        problems.append(f"not installed; run `forkyard agent install {driver.name}`")
    else:
        damage = await services.agents.damage(installed)
        problems += damage[:MOST_PROBLEMS]
        if damage:
            problems.append(
                f"it is damaged: remove {installed.folder.parent} and run"
                f" `forkyard agent install {driver.name}`"
            )
    notes = [
        f"another version is still there: agents/{one}"
        for one in services.agents.others(driver.name)
    ]
    if recipe.needs:
        notes.append(
            f"the image must have {recipe.needs}; without it, or with another version, the agent"
            " does not start: its attempts end with failure `agent`, exit status 127, and say so"
        )
        notes.append(f"image `host`: {await _python_here()}")
    return DriverReport(
        **info,
        folder=None if installed is None else str(installed.folder),
        archives=[
            ArchiveInfo(
                registry=one.registry,
                name=one.name,
                version=one.version,
                file=one.file,
                sha512=one.sha512,
            )
            for one in recipe.packages
        ],
        needs=recipe.needs,
        problems=problems,
        notes=notes,
    )
