"""How an installed agent reaches its model: addresses, the key that is none, and its patience.

Inside, a provider is a host name. Requests go there in plain HTTP and without a key of ours; the
gateway at the other end of the socket knows who is asking and adds what the provider wants.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from forkyard.agents.interface import AGENT_FOLDER, AGENTS_ROOT
from forkyard.errors import ConfigError
from forkyard.model.run import AgentSpec

DUMMY_KEY = "injected-by-gateway"
"""Clients refuse to start without a key; the gateway drops whatever they send."""

RETRIES = 2
"""Of a request by the agent itself: the gateway has tried before an error reaches it."""
HEADERS_SECONDS = 600
"""Until an answer begins. Long, since a request may wait for budget or the provider's rate. A
provider that is silent is given up by the gateway, which alone can tell the two apart, and sooner
each time: so a silent provider ends a run within two minutes, a busy one does not."""
IDLE_SECONDS = 300
"""Of silence in a stream: for a gateway that is no more, with the same reason."""

APIS = ("anthropic", "openai", "gemini")


def provider_of(agent: AgentSpec, default: str) -> str:
    """Give the name of the provider that an agent talks to."""
    return agent.provider or default


def api_of(provider: str) -> str:
    """Say which API is spoken with a provider, by its name.

    `anthropic`, `gemini` and names that go on with `-` after these words; all others speak
    OpenAI's.
    """
    for api in APIS:
        if provider == api or provider.startswith(f"{api}-"):
            return api
    return "openai"


def program(driver: str, path: str) -> str:
    """Give the path inside of a file of an installed agent."""
    return f"{AGENTS_ROOT}/{driver}/{path}"


def folder(driver: str) -> str:
    """Give the path inside of a driver's own folder for configuration and state."""
    return f"{AGENT_FOLDER}/{driver}"


def variables_of(
    agent: AgentSpec, *, usual: Mapping[str, str], fixed: Mapping[str, str]
) -> dict[str, str]:
    """Lay a driver's variables and the agent's own over one another.

    Args:
        agent: Whose variables replace the usual ones.
        usual: What a person may want otherwise: retries, time limits, switches.
        fixed: Addresses, keys and places; `problem_with` refuses an agent that sets one.
    """
    return {**usual, **agent.variables, **fixed}


def problem_with(
    agent: AgentSpec,
    driver: str,
    fixed: Iterable[str],
    *,
    apis: tuple[str, ...] = (),
) -> ConfigError | None:
    """Find what no agent of an installed kind may be configured with.

    Args:
        agent: As a task file has it.
        driver: Its driver's name.
        fixed: Names of the variables that the driver sets itself.
        apis: The APIs that it can speak; empty: any.
    """
    if agent.command.strip():
        return ConfigError(
            f"cannot use agent {agent.name}: driver {driver} builds its command itself",
            hint="Remove `command`, or use `driver: command`.",
        )
    taken = sorted(set(fixed) & set(agent.variables))
    if taken:
        return ConfigError(
            f"cannot use agent {agent.name}: driver {driver} sets {', '.join(taken)} itself",
            hint="Remove it; keys belong into `forkyard secret set`, addresses into gateway.yaml.",
        )
    texts = (agent.model, agent.provider, *agent.variables, *agent.variables.values())
    if any("\0" in text for text in texts):
        return ConfigError(
            f"cannot use agent {agent.name}: its model or variables hold a NUL character",
            hint="Remove it.",
        )
    if any(not (one.isascii() and one.isprintable()) or one in "\"'\\ " for one in agent.model):
        return ConfigError(
            f"cannot use agent {agent.name}: {agent.model!r} is no model's name",
            hint="Give the name that the provider's API takes.",
        )
    if apis and agent.provider and (spoken := api_of(agent.provider)) not in apis:
        return ConfigError(
            f"cannot use agent {agent.name}: driver {driver} speaks {' or '.join(apis)}, and"
            f" provider {agent.provider} speaks {spoken}",
            hint="Name another provider, or rename it in gateway.yaml after the API it speaks.",
        )
    return None
