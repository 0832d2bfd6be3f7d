"""Routes about agents: which drivers there are, how they are installed, installing one."""

from __future__ import annotations

from pathlib import Path

from forkyard.agents.interface import AgentDriver
from forkyard.agents.registry import driver_named, driver_names
from forkyard.errors import ConfigError, NotFoundError
from forkyard.server.services import Services
from forkyard.server.table import Call
from forkyard.wire.schema import ArchiveInfo, DriverInfo, DriverReport, InstallRequest

MOST_PROBLEMS = 20


async def drivers(call: Call) -> list[DriverInfo]:
    """List the agent drivers of this version."""
    return [_info(call.services, driver_named(name)) for name in driver_names()]


async def check(call: Call) -> DriverReport:
    """Say how an agent is installed, comparing each of its files with what was unpacked."""
    return await _report(call.services, _found(call))


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
        notes.append(f"the image must have {recipe.needs}")
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
