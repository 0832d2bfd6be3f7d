"""Which agents the gateway lets in, with what grant, and what is wrong with that beforehand: pure.

An agent that a driver runs always calls its model. One of driver `command` is let in where its
task file names a model or a provider or says `gateway: true`, and where the run limits what may be
spent: a limit means that something is spent. Everybody else has no network at all.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

from forkyard.agents.registry import driver_named
from forkyard.coordinator.rows import names_of
from forkyard.errors import Problem
from forkyard.model.budget import Grant
from forkyard.model.provider import GatewaySettings, Provider
from forkyard.model.run import AgentSpec, Attempt, RunLimits

Priced = Callable[[str, Provider], bool]
"""Whether a model of a provider has a known price."""


def is_let_in(agent: AgentSpec, limits: RunLimits) -> bool:
    """Say whether an agent's attempts can reach the gateway."""
    return (
        driver_named(agent.driver).api is not None
        or bool(agent.gateway or agent.model or agent.provider)
        or _is_limited(limits)
    )


def model_of(agent: AgentSpec) -> str | None:
    """Name the one model that an agent is let in for; None: any that its provider allows."""
    return agent.model or driver_named(agent.driver).default_model


def _is_limited(limits: RunLimits) -> bool:
    return (
        not limits.budget.is_unlimited
        or not limits.attempt_budget.is_unlimited
        or limits.attempt_requests is not None
    )


def grant_of(attempt: Attempt, agent: AgentSpec, limits: RunLimits) -> Grant:
    """Say what a prepared attempt may ask of the gateway."""
    _, workspace = names_of(attempt)
    model = model_of(agent)
    return Grant(
        workspace=workspace,
        run=attempt.run,
        attempt=attempt.id,
        agent=attempt.agent,
        # what is compared is the model that was asked for, and what is priced as well
        models=() if model is None else (model,),
        attempt_budget=limits.attempt_budget,
        run_budget=limits.budget,
        most_requests=limits.attempt_requests,
    )


def access_problems(
    agent: AgentSpec,
    limits: RunLimits,
    *,
    settings: GatewaySettings,
    secrets: Collection[str],
    is_priced: Priced,
) -> Iterator[Problem]:
    """List what would keep an agent from its model, keys relative to the agent's own.

    Args:
        agent: Let in.
        limits: Of the run.
        settings: The gateway's.
        secrets: Names of those that are set.
        is_priced: Asked only with a budget in money.
    """
    named = agent.provider or driver_named(agent.driver).api
    if named is None:
        missing = no_key(settings, secrets)
        if missing is not None:
            yield Problem(message=missing, key="provider")
        found = [one for one in settings.providers if _has_key(one, secrets)]
    else:
        found = [one for one in settings.providers if one.name == named]
        if not found:
            known = ", ".join(one.name for one in settings.providers) or "none"
            yield Problem(
                message=f"provider {named} is not configured (there is: {known}); add it to"
                " gateway.yaml",
                key="provider",
            )
        for one in found:
            if not _has_key(one, secrets):
                yield Problem(
                    message=f"provider {one.name} has no key: secret {one.secret} is not set; set"
                    f" it with `forkyard secret set {one.secret}`",
                    key="provider",
                )
    if not found:
        return
    yield from _model_problems(agent, limits, found, is_priced)


def _model_problems(
    agent: AgentSpec, limits: RunLimits, providers: list[Provider], is_priced: Priced
) -> Iterator[Problem]:
    in_money = any(one.micro_usd is not None for one in (limits.budget, limits.attempt_budget))
    model = model_of(agent)
    if model is None:
        return
    if not any(_allows(one, model) for one in providers):
        names = " or ".join(one.name for one in providers)
        yield Problem(
            message=f"model {model} is not among those that provider {names} allows; add it"
            " to gateway.yaml",
            key="model",
        )
    elif in_money and not any(is_priced(model, one) for one in providers):
        yield Problem(
            message=f"model {model} has no known price, so a budget in money cannot hold"
            " it; give its price in gateway.yaml, or limit tokens",
            key="model",
        )


def _has_key(provider: Provider, secrets: Collection[str]) -> bool:
    return provider.secret is None or provider.secret in secrets


def _allows(provider: Provider, model: str) -> bool:
    return not provider.models or any(
        model.startswith(one[:-1]) if one.endswith("*") else model == one for one in provider.models
    )


def no_key(settings: GatewaySettings, secrets: Collection[str]) -> str | None:
    """Say what to do where no provider has its key; None: one has, or needs none."""
    if any(_has_key(one, secrets) for one in settings.providers):
        return None
    first = next((one.secret for one in settings.providers if one.secret is not None), None)
    if first is None:
        return "no provider is configured; add one to gateway.yaml"
    return f"no provider has its key; set one with `forkyard secret set {first}`"
