"""Driver of opencode: the native program's `run`, with events as JSON lines."""

from __future__ import annotations

import json
from collections.abc import Iterable

from forkyard.agents import transcript as read
from forkyard.agents.connection import (
    DUMMY_KEY,
    HEADERS_SECONDS,
    IDLE_SECONDS,
    api_of,
    folder,
    problem_with,
    program,
    provider_of,
    variables_of,
)
from forkyard.agents.ended import ending_of
from forkyard.agents.interface import AgentCommand, AgentEnding, Recipe
from forkyard.agents.limitations import prompt_with_request
from forkyard.agents.pins import pinned
from forkyard.agents.trajectory import ToolCall, Trajectory
from forkyard.errors import ConfigError
from forkyard.model.budget import TokenCounts
from forkyard.model.execution import ExecResult
from forkyard.model.run import AgentSpec, Task

_FIXED = (
    "OPENCODE_CONFIG",
    "OPENCODE_CONFIG_CONTENT",
    "OPENCODE_CONFIG_DIR",
    "OPENCODE_AUTH_CONTENT",
    "FORKYARD_DUMMY_KEY",
)
_USUAL = {
    "OPENCODE_DISABLE_AUTOUPDATE": "1",
    "OPENCODE_DISABLE_MODELS_FETCH": "1",
    "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
    "OPENCODE_DISABLE_DEFAULT_PLUGINS": "1",
    "OPENCODE_DISABLE_SHARE": "1",
}
_CLIENTS = {
    "anthropic": ("@ai-sdk/anthropic", "/v1"),
    "openai": ("@ai-sdk/openai-compatible", "/v1"),
}
"""API -> the client that opencode carries for it, and what it wants after the host."""
_CONTEXT_TOKENS = 200_000
_OUTPUT_TOKENS = 32_000
_GATEWAY = "gateway"


class Opencode:
    """opencode by Anomaly."""

    name = "opencode"
    title = "opencode"
    api: str | None = "anthropic"
    default_model: str | None = "claude-sonnet-4-5"
    recipe: Recipe | None = pinned(name)

    def check(self, agent: AgentSpec) -> ConfigError | None:
        """Refuse what it cannot honour."""
        found = problem_with(agent, self.name, _FIXED, apis=tuple(_CLIENTS))
        if found is None and agent.provider and not agent.model:
            return model_missing(agent, self.api)
        return found

    def command(self, agent: AgentSpec, task: Task) -> AgentCommand:
        """Run one prompt to its end; its configuration allows everything."""
        place = folder(self.name)
        provider = provider_of(agent, "anthropic")
        model = agent.model or self.default_model or ""
        return AgentCommand(
            argv=(
                program(self.name, "bin/opencode"),
                "run",
                "--format",
                "json",
                "--model",
                f"{_GATEWAY}/{model}",
                "--",
                prompt_with_request(task.prompt),
            ),
            working_directory=task.repository,
            variables=variables_of(
                agent,
                usual=_USUAL,
                fixed={
                    "OPENCODE_CONFIG": f"{place}/opencode.json",
                    "OPENCODE_CONFIG_DIR": place,
                    "FORKYARD_DUMMY_KEY": DUMMY_KEY,
                },
            ),
            files={f"{place}/opencode.json": _configuration(provider, model)},
        )

    def ending(
        self, agent: AgentSpec, result: ExecResult, transcript: Trajectory | None = None
    ) -> AgentEnding:
        """Go by the exit status and by `error` events."""
        return ending_of(agent, result, transcript)

    def trajectory(self, lines: Iterable[str]) -> Trajectory | None:
        """Read the stream of events; it has no closing line, so success is never claimed."""
        found = read.Transcript()
        total = TokenCounts()
        for line in read.objects(lines, found):
            found.session = found.session or read.word(line.get("sessionID"))
            part = read.fields(line.get("part"))
            match line.get("type"):
                case "step_start":
                    pass
                case "text":
                    found.api_error = None
                    found.say("assistant", read.text(part.get("text")))
                case "reasoning":
                    found.say("reasoning", read.text(part.get("text")))
                case "tool_use":
                    _tool(found, part)
                case "step_finish":
                    found.api_error = None
                    total += _tokens(read.fields(part.get("tokens")))
                case "error":
                    _error(found, read.fields(line.get("error")))
                case _:
                    found.skipped += 1
        found.claimed_tokens = total if total.total else None
        return found.done()


def model_missing(agent: AgentSpec, api: str | None) -> ConfigError | None:
    """Refuse a provider of another API without a model: the default is none of its models."""
    if api_of(agent.provider) == api:
        return None
    return ConfigError(
        f"cannot use agent {agent.name}: provider {agent.provider} needs a model to be named",
        hint="Add `model: NAME` to the agent.",
    )


def _configuration(provider: str, model: str) -> str:
    client, path = _CLIENTS[api_of(provider)]
    name = f"{_GATEWAY}/{model}"
    return json.dumps(
        {
            "$schema": "https://opencode.ai/config.json",
            "autoupdate": False,
            "share": "disabled",
            "permission": "allow",
            "enabled_providers": [_GATEWAY],
            "model": name,
            # The title would be asked of another provider otherwise.
            "small_model": name,
            "provider": {
                _GATEWAY: {
                    "npm": client,
                    "name": _GATEWAY,
                    "options": {
                        "baseURL": f"http://{provider}{path}",
                        "apiKey": "{env:FORKYARD_DUMMY_KEY}",
                        "headerTimeout": HEADERS_SECONDS * 1000,
                        "chunkTimeout": IDLE_SECONDS * 1000,
                    },
                    "models": {
                        model: {"limit": {"context": _CONTEXT_TOKENS, "output": _OUTPUT_TOKENS}}
                    },
                }
            },
        },
        indent=1,
    )


def _tool(found: read.Transcript, part: read.Fields) -> None:
    state = read.fields(part.get("state"))
    metadata = read.fields(state.get("metadata"))
    time = read.fields(state.get("time"))
    start, end = read.number(time.get("start")), read.number(time.get("end"))
    status = read.status(metadata.get("exit"))
    found.call(
        "",
        ToolCall(
            tool=read.word(part.get("tool")) or "unnamed",
            input=read.shown(state.get("input")),
            output=read.shown(state.get("output") or state.get("error")),
            exit_status=status,
            is_error=state.get("status") == "error" or status not in {None, 0},
            milliseconds=None if start is None or end is None or end < start else end - start,
        ),
    )


def _tokens(tokens: read.Fields) -> TokenCounts:
    cache = read.fields(tokens.get("cache"))
    reasoning = read.number(tokens.get("reasoning")) or 0
    return TokenCounts(
        input=read.number(tokens.get("input")) or 0,
        cache_read=read.number(cache.get("read")) or 0,
        cache_write=read.number(cache.get("write")) or 0,
        # It counts reasoning beside its output.
        output=(read.number(tokens.get("output")) or 0) + reasoning,
        reasoning=reasoning,
    )


def _error(found: read.Transcript, error: read.Fields) -> None:
    data = read.fields(error.get("data"))
    said = read.word(data.get("message")) or read.word(error.get("name")) or "no reason given"
    code = read.number(data.get("statusCode"))
    found.api_error = said if code is None else f"{code} {said}"
    found.claimed_success = False
