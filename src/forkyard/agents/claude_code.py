"""Driver of Claude Code: the native program, in print mode, with a stream of JSON lines."""

from __future__ import annotations

from collections.abc import Iterable

from forkyard.agents import transcript as read
from forkyard.agents.connection import (
    DUMMY_KEY,
    HEADERS_SECONDS,
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

_FIXED = (
    "ANTHROPIC_API_KEY",
    "ANTHROPIC_AUTH_TOKEN",
    "ANTHROPIC_BASE_URL",
    "CLAUDE_CODE_OAUTH_TOKEN",
    "CLAUDE_CODE_USE_BEDROCK",
    "CLAUDE_CODE_USE_VERTEX",
    "CLAUDE_CONFIG_DIR",
)
_USUAL = {
    # Nothing but the model: no telemetry, no updates, no error reports. The one switch that
    # stops every query; the narrower ones leave some.
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    # It refuses to skip permissions for root otherwise; inside, root is nobody outside.
    "IS_SANDBOX": "1",
    # Left at ten it tries a refusal for minutes.
    "CLAUDE_CODE_MAX_RETRIES": str(RETRIES),
    # A second, unstreamed call for an answer that broke would be spent on top.
    "CLAUDE_CODE_DISABLE_NONSTREAMING_FALLBACK": "1",
    "API_TIMEOUT_MS": str(HEADERS_SECONDS * 1000),
    "CLAUDE_STREAM_FIRST_BYTE_TIMEOUT_MS": str(HEADERS_SECONDS * 1000),
    "CLAUDE_BYTE_STREAM_IDLE_TIMEOUT_MS": str(IDLE_SECONDS * 1000),
    "DISABLE_AUTOUPDATER": "1",
}


class ClaudeCode:
    """Claude Code by Anthropic."""

    name = "claude-code"
    title = "Claude Code"
    api: str | None = "anthropic"
    default_model: str | None = "claude-opus-5-5"
    recipe: Recipe | None = pinned(name)

    def check(self, agent: AgentSpec) -> ConfigError | None:
        """Refuse what it cannot honour."""
        return problem_with(agent, self.name, _FIXED, apis=("anthropic",))

    def command(self, agent: AgentSpec, task: Task) -> AgentCommand:
        """Print mode, everything allowed: the sandbox is the limit, not a prompt."""
        provider = provider_of(agent, "anthropic")
        return AgentCommand(
            argv=(
                program(self.name, "claude"),
                "--print",
                "--output-format",
                "stream-json",
                "--verbose",
                "--dangerously-skip-permissions",
                "--model",
                agent.model or self.default_model or "",
                "--",
                prompt_with_request(task.prompt),
            ),
            working_directory=task.repository,
            variables=variables_of(
                agent,
                usual=_USUAL,
                fixed={
                    "ANTHROPIC_BASE_URL": f"http://{provider}",
                    "ANTHROPIC_API_KEY": DUMMY_KEY,
                    "CLAUDE_CONFIG_DIR": folder(self.name),
                },
            ),
            files={f"{folder(self.name)}/settings.json": _SETTINGS},
        )

    def ending(
        self, agent: AgentSpec, result: ExecResult, transcript: Trajectory | None = None
    ) -> AgentEnding:
        """Go by the exit status and the result line's `is_error`, never by its `subtype`."""
        return ending_of(agent, result, transcript)

    def trajectory(self, lines: Iterable[str]) -> Trajectory | None:
        """Read the stream of JSON lines."""
        found = read.Transcript()
        for line in read.objects(lines, found):
            match line.get("type"):
                case "system":
                    _system(found, line)
                case "assistant":
                    _assistant(found, read.fields(line.get("message")))
                case "user":
                    _user(found, line)
                case "result":
                    _result(found, line)
                case "rate_limit_event":
                    pass
                case _:
                    found.skipped += 1
        return found.done()


# No line of its own in commits: what an agent's commit says is the repository's matter.
_SETTINGS = '{"attribution": {"commit": "", "pr": ""}}\n'


def _system(found: read.Transcript, line: read.Fields) -> None:
    match line.get("subtype"):
        case "init":
            found.session = read.word(line.get("session_id"))
            found.model = read.word(line.get("model"))
            found.agent_version = read.word(line.get("claude_code_version"))
        case "api_retry":
            code = read.number(line.get("error_status"))
            error = read.word(line.get("error")) or "no answer"
            found.api_error = error if code is None else f"{code} {error}"
        case _:
            pass


def _assistant(found: read.Transcript, message: read.Fields) -> None:
    # One line per block of content; its usage is that of the message's start, so not summed.
    is_synthetic = message.get("model") == "<synthetic>"
    if not is_synthetic:
        found.api_error = None
    for block in map(read.fields, read.items(message.get("content"))):
        match block.get("type"):
            case "text":
                role = "system" if is_synthetic else "assistant"
                found.say(role, read.text(block.get("text")))
            case "thinking":
                found.say("reasoning", read.text(block.get("thinking")))
            case "tool_use":
                found.call(
                    read.text(block.get("id")),
                    ToolCall(
                        tool=read.word(block.get("name")) or "unnamed",
                        input=read.shown(block.get("input")),
                    ),
                )
            case _:
                pass


def _user(found: read.Transcript, line: read.Fields) -> None:
    content = read.fields(line.get("message")).get("content")
    if isinstance(content, str):
        found.say("user", read.text(content))
        return
    for block in map(read.fields, read.items(content)):
        if block.get("type") == "text":
            found.say("user", read.text(block.get("text")))
        if block.get("type") != "tool_result":
            continue
        output = _plain(block.get("content"))
        is_error = block.get("is_error") is True
        found.called(
            read.text(block.get("tool_use_id")),
            output=output,
            exit_status=_exit_status(output) if is_error else None,
            is_error=is_error,
        )


def _exit_status(output: str) -> int | None:
    # A failed shell command's result starts with its status; a good one's says nothing.
    first, _, digits = output.split("\n", 1)[0].rpartition(" ")
    known = first == "Exit code" and digits.isascii() and digits.isdigit()
    return read.status(int(digits[:9])) if known else None


def _plain(content: object) -> str:
    if isinstance(content, list):
        parts = [read.text(read.fields(one).get("text")) for one in content[:1000]]
        return read.text("\n".join(part for part in parts if part))
    return read.text(content)


def _result(found: read.Transcript, line: read.Fields) -> None:
    is_error = line.get("is_error") is not False
    found.claimed_success = not is_error
    words = read.text(line.get("result"))
    if is_error:
        code = read.number(line.get("api_error_status"))
        said = read.word(words) or read.word(line.get("terminal_reason")) or "no reason given"
        if code is not None or line.get("terminal_reason") == "api_error":
            found.api_error = said
    else:
        found.api_error = None
        if words:
            found.final_text = words
    usage = read.fields(line.get("usage"))
    if usage:
        found.claimed_tokens = TokenCounts(
            input=read.number(usage.get("input_tokens")) or 0,
            cache_read=read.number(usage.get("cache_read_input_tokens")) or 0,
            cache_write=read.number(usage.get("cache_creation_input_tokens")) or 0,
            output=read.number(usage.get("output_tokens")) or 0,
        )
