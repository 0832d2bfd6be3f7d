"""Whether a run's agents could work at all, looked at before anything is made or spent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from pathlib import Path

from forkyard.agents.registry import driver_named
from forkyard.coordinator.access import access_problems, is_let_in, no_key
from forkyard.errors import ConfigError, Problem
from forkyard.gateway.prices import PriceTable
from forkyard.model.provider import GatewaySettings, Provider
from forkyard.wire.gatewayfile import parse_gateway_settings
from forkyard.wire.taskfile import RunRequest

MOST_SETTINGS_BYTES = 1024**2


def read_settings(path: Path) -> GatewaySettings:
    """Read the gateway's settings file; without one, the defaults.

    Raises:
        ConfigError: With every problem of it, or it cannot be read.
    """
    try:
        with path.open("rb") as file:
            text = file.read(MOST_SETTINGS_BYTES).decode("utf-8")
    except FileNotFoundError:
        text = ""
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigError(
            f"cannot read {path}: {reason}", hint="Correct it, or remove it for the defaults."
        ) from error
    return parse_gateway_settings(text, str(path))


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelAccess:
    """See the module."""

    settings: Callable[[], GatewaySettings]
    secrets: Callable[[], Collection[str]]
    """Names of those that are set."""

    async def refuse_without_keys(self) -> None:
        """Refuse to let anybody in at a gateway that has no key to any model.

        Raises:
            ConfigError: No provider has its key, or the settings cannot be read.
        """
        settings = await asyncio.to_thread(self.settings)
        problem = no_key(settings, self.secrets())
        if problem is not None:
            raise ConfigError(f"cannot let a workspace in at the gateway: {problem}")

    async def problems(self, request: RunRequest) -> list[Problem]:
        """List everything that keeps an agent from its model.

        Raises:
            ConfigError: The settings themselves cannot be read.
        """
        if not any(
            self._exists(agent.driver) and is_let_in(agent, request.limits)
            for task in request.tasks
            for agent in task.agents
        ):
            return []
        return await asyncio.to_thread(self._problems, request)

    def _problems(self, request: RunRequest) -> list[Problem]:
        settings, secrets = self.settings(), self.secrets()
        prices = PriceTable(settings.prices)

        def is_priced(model: str, provider: Provider) -> bool:
            return prices.price_of(model, provider.api) is not None

        found: dict[Problem, None] = {}
        for index, task in enumerate(request.tasks):
            where = f"tasks.{index}." if len(request.tasks) > 1 else ""
            for place, agent in enumerate(task.agents):
                if not (self._exists(agent.driver) and is_let_in(agent, request.limits)):
                    continue
                for one in access_problems(
                    agent, request.limits, settings=settings, secrets=secrets, is_priced=is_priced
                ):
                    key = f"{where}agents.{place}.{one.key}"
                    found[replace(one, key=key, file=request.file)] = None
        return list(found)

    @staticmethod
    def _exists(driver: str) -> bool:
        """Leave drivers that do not exist to whoever refuses them."""
        try:
            driver_named(driver)
        except ConfigError:
            return False
        return True
