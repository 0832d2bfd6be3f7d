"""Driver of Codex: the native program's `exec`, with events as JSON lines."""

from __future__ import annotations

from collections.abc import Iterable

from forkyard.agents import transcript as read
from forkyard.agents.connection import (
    DUMMY_KEY,
    IDLE_SECONDS,
    RETRIES,
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

_BINARY = "vendor/x86_64-unknown-linux-musl/bin/codex"
_FIXED = ("CODEX_HOME", "CODEX_API_KEY", "FORKYARD_DUMMY_KEY", "OPENAI_API_KEY", "OPENAI_BASE_URL")
# No retry of a request: the gateway has retried, and Codex multiplies it with that of the stream.
_CONFIGURATION = """\
model = "{model}"
model_provider = "gateway"
approval_policy = "never"
sandbox_mode = "danger-full-access"
check_for_update_on_startup = false

[model_providers.gateway]
name = "gateway"
base_url = "http://{provider}/v1"
env_key = "FORKYARD_DUMMY_KEY"
wire_api = "responses"
request_max_retries = 0
stream_max_retries = {retries}
stream_idle_timeout_ms = {idle}

[analytics]
enabled = false

[feedback]
enabled = false
"""
_TOOL_ITEMS = {
    "command_execution": "command",
    "file_change": "changes",
    "mcp_tool_call": "arguments",
    "web_search": "query",
    "collab_tool_call": "prompt",
}
"""Kind of item -> its field that holds what was asked for."""


class Codex:
    """Codex by OpenAI."""

    name = "codex"
    title = "Codex"
    api: str | None = "openai"
    default_model: str | None = "gpt-5.5"
    recipe: Recipe | None = pinned(name)

    def check(self, agent: AgentSpec) -> ConfigError | None:
        """Refuse what it cannot honour."""
        return problem_with(agent, self.name, _FIXED, apis=("openai",))

    def command(self, agent: AgentSpec, task: Task) -> AgentCommand:
        """Run one turn to its end, everything allowed: the sandbox is the limit."""
        place = folder(self.name)
        return AgentCommand(
            argv=(
                program(self.name, _BINARY),
                "exec",
                "--json",
                "--sandbox",
                "danger-full-access",
                # It would fetch them at every start.
                "--disable",
                "plugins",
                "--skip-git-repo-check",
                "--",
                prompt_with_request(task.prompt),
            ),
            working_directory=task.repository,
            variables=variables_of(
                agent,
                usual={},
                fixed={"CODEX_HOME": place, "FORKYARD_DUMMY_KEY": DUMMY_KEY},
            ),
            files={
                f"{place}/config.toml": _CONFIGURATION.format(
                    model=agent.model or self.default_model,
                    provider=provider_of(agent, "openai"),
                    retries=RETRIES,
                    idle=IDLE_SECONDS * 1000,
                )
            },
        )

    def ending(
        self, agent: AgentSpec, result: ExecResult, transcript: Trajectory | None = None
    ) -> AgentEnding:
        """Go by the exit status and by `turn.failed`."""
        return ending_of(agent, result, transcript)

    def trajectory(self, lines: Iterable[str]) -> Trajectory | None:
        """Read the stream of events."""
        found = read.Transcript()
        for line in read.objects(lines, found):
            match line.get("type"):
                case "thread.started":
                    found.session = read.word(line.get("thread_id"))
                case "turn.started" | "item.started" | "item.updated":
                    pass  # told whole when it is completed
                case "item.completed":
                    _item(found, read.fields(line.get("item")))
                case "turn.completed":
                    found.claimed_success = True
                    found.api_error = None
                    _usage(found, read.fields(line.get("usage")))
                case "turn.failed":
                    found.claimed_success = False
                    said = read.word(read.fields(line.get("error")).get("message"))
                    found.api_error = said or "no reason given"
                case "error":
                    found.api_error = read.word(line.get("message")) or "no reason given"
                case _:
                    found.skipped += 1
        return found.done()


def _item(found: read.Transcript, item: read.Fields) -> None:
    kind = item.get("type")
    if kind == "agent_message":
        found.api_error = None
        found.say("assistant", read.text(item.get("text")))
    elif kind == "reasoning":
        found.say("reasoning", read.text(item.get("text")))
    elif kind == "error":
        # May be a mere warning; what ends the turn comes as an event of its own.
        found.say("system", read.text(item.get("message")))
    elif isinstance(kind, str) and kind in _TOOL_ITEMS:
        found.api_error = None
        status = read.status(item.get("exit_code"))
        output = item.get("aggregated_output", item.get("result"))
        found.call(
            "",
            ToolCall(
                tool=kind,
                input=read.shown(item.get(_TOOL_ITEMS[kind])),
                output=read.shown(output),
                exit_status=status,
                is_error=item.get("status") in {"failed", "declined"} or status not in {None, 0},
            ),
        )
    elif kind == "todo_list":
        pass
    else:
        found.skipped += 1


def _usage(found: read.Transcript, usage: read.Fields) -> None:
    cached = read.number(usage.get("cached_input_tokens")) or 0
    written = read.number(usage.get("cache_write_input_tokens")) or 0
    everything = read.number(usage.get("input_tokens")) or 0
    found.claimed_tokens = TokenCounts(
        input=max(0, everything - cached - written),
        cache_read=cached,
        cache_write=written,
        output=read.number(usage.get("output_tokens")) or 0,
        reasoning=read.number(usage.get("reasoning_output_tokens")) or 0,
    )
