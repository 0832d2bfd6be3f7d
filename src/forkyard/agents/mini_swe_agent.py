"""Driver of mini-swe-agent: Python packages that are brought along, on the image's own Python.

No registry has a Python for it that we would trust, so this one needs /usr/bin/python3 in the
image. It prints for people; a launcher of ours sends that to standard error and its trajectory,
one line of JSON, to standard output.
"""

from __future__ import annotations

from collections.abc import Iterable

from forkyard.agents import transcript as read
from forkyard.agents.connection import (
    DUMMY_KEY,
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
from forkyard.agents.opencode import model_missing
from forkyard.agents.pins import pinned
from forkyard.agents.trajectory import ToolCall, Trajectory
from forkyard.errors import ConfigError
from forkyard.model.budget import TokenCounts
from forkyard.model.execution import ExecResult
from forkyard.model.run import AgentSpec, Task

PYTHON = "/usr/bin/python3"
PYTHON_VERSIONS = ((3, 11), (3, 12), (3, 13))
"""For which its compiled packages are brought along."""

_FIXED = (
    "ANTHROPIC_API_BASE",
    "ANTHROPIC_API_KEY",
    "MSWEA_GLOBAL_CONFIG_DIR",
    "OPENAI_API_BASE",
    "OPENAI_API_KEY",
    "OPENAI_BASE_URL",
)
_USUAL = {
    "MSWEA_CONFIGURED": "true",
    # Its own price table knows few models; what is spent is in our ledger.
    "MSWEA_COST_TRACKING": "ignore_errors",
    "MSWEA_MODEL_RETRY_STOP_AFTER_ATTEMPT": "1",
    "MSWEA_SILENT_STARTUP": "1",
    # It would fetch a price table at each start.
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
}
_NOT_EXECUTED = "action was not executed"
_LAUNCHER = """\
import json, os, signal, sys

library, trajectory, *arguments = sys.argv[1:]
if sys.version_info[:2] not in {versions}:
    print("cannot run on Python", sys.version.split()[0], file=sys.stderr)
    sys.exit(127)
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
out = os.dup(1)
os.set_inheritable(out, False)
os.dup2(2, 1)
sys.path.insert(0, library)
sys.argv = ["mini", *arguments, "-o", trajectory]
try:
    from minisweagent.run.mini import app

    app()
finally:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if os.path.exists(trajectory):
        with open(trajectory, encoding="utf-8") as file, open(out, "w", encoding="utf-8") as told:
            told.write(json.dumps(json.load(file)) + "\\n")
"""


class MiniSweAgent:
    """mini-swe-agent by the SWE-bench team."""

    name = "mini-swe-agent"
    title = "mini-swe-agent"
    api: str | None = "openai"
    default_model: str | None = "gpt-5"
    recipe: Recipe | None = pinned(name)

    def check(self, agent: AgentSpec) -> ConfigError | None:
        """Refuse what it cannot honour."""
        found = problem_with(agent, self.name, _FIXED, apis=("openai", "anthropic"))
        if found is None and agent.provider and not agent.model:
            return model_missing(agent, self.api)
        return found

    def command(self, agent: AgentSpec, task: Task) -> AgentCommand:
        """Run it without questions; cost limits are the gateway's, not its own."""
        place = folder(self.name)
        provider = provider_of(agent, "openai")
        api = api_of(provider)
        base = f"http://{provider}" if api == "anthropic" else f"http://{provider}/v1"
        name = api.upper()
        return AgentCommand(
            argv=(
                PYTHON,
                # Isolated: nothing of the repository or the home is imported into the agent.
                "-IB",
                f"{place}/launch.py",
                program(self.name, "lib"),
                f"{place}/trajectory.json",
                "--model",
                f"{api}/{agent.model or self.default_model}",
                "--yolo",
                "--exit-immediately",
                "--cost-limit",
                "0",
                f"--task={prompt_with_request(task.prompt)}",
            ),
            working_directory=task.repository,
            variables=variables_of(
                agent,
                usual=_USUAL,
                fixed={
                    f"{name}_API_BASE": base,
                    f"{name}_API_KEY": DUMMY_KEY,
                    "MSWEA_GLOBAL_CONFIG_DIR": place,
                },
            ),
            files={f"{place}/launch.py": _LAUNCHER.replace("{versions}", repr(PYTHON_VERSIONS))},
        )

    def ending(
        self, agent: AgentSpec, result: ExecResult, transcript: Trajectory | None = None
    ) -> AgentEnding:
        """Go by the exit status and by how its trajectory says that it ended."""
        return ending_of(agent, result, transcript)

    def trajectory(self, lines: Iterable[str]) -> Trajectory | None:
        """Read the one line that the launcher prints at the end."""
        found = read.Transcript()
        for line in read.objects(lines, found):
            if "messages" not in line:
                found.skipped += 1
                continue
            found.agent_version = read.word(read.fields(line.get("info")).get("mini_version"))
            _messages(found, read.items(line.get("messages")))
        return found.done()


def _messages(found: read.Transcript, messages: list[object]) -> None:
    total = TokenCounts()
    said_at: float | None = None
    for message in map(read.fields, messages):
        extra = read.fields(message.get("extra"))
        match message.get("role"):
            case "system" | "user" as role:
                found.say(str(role), read.text(message.get("content")))
            case "assistant":
                total += _assistant(found, message, extra)
                said_at = _time(extra)
            case "tool":
                at = _time(extra)
                _tool(found, message, extra, since=said_at, until=at)
                said_at = at
            case "exit":
                _end(found, message, extra)
            case _:
                found.skipped += 1
    found.claimed_tokens = total if total.total else None


def _assistant(found: read.Transcript, message: read.Fields, extra: read.Fields) -> TokenCounts:
    found.say("reasoning", read.text(message.get("reasoning_content")))
    found.say("assistant", read.text(message.get("content")))
    for call in map(read.fields, read.items(message.get("tool_calls"))):
        asked = read.fields(call.get("function"))
        found.call(
            read.text(call.get("id")),
            ToolCall(
                tool=read.word(asked.get("name")) or "unnamed",
                input=read.shown(asked.get("arguments")),
            ),
        )
    response = read.fields(extra.get("response"))
    found.model = read.word(response.get("model")) or found.model
    return _usage(read.fields(response.get("usage")))


def _usage(usage: read.Fields) -> TokenCounts:
    asked = read.fields(usage.get("prompt_tokens_details"))
    answered = read.fields(usage.get("completion_tokens_details"))
    cached = read.number(asked.get("cached_tokens")) or 0
    written = read.number(usage.get("cache_creation_input_tokens")) or 0
    everything = read.number(usage.get("prompt_tokens")) or 0
    return TokenCounts(
        input=max(0, everything - cached - written),
        cache_read=cached,
        cache_write=written,
        output=read.number(usage.get("completion_tokens")) or 0,
        reasoning=read.number(answered.get("reasoning_tokens")) or 0,
    )


def _tool(
    found: read.Transcript,
    message: read.Fields,
    extra: read.Fields,
    *,
    since: float | None,
    until: float | None,
) -> None:
    status = read.status(extra.get("returncode"))
    if extra.get("exception_info") == _NOT_EXECUTED:
        status = None  # how it hands its work in: no command was run
    known = since is not None and until is not None and until >= since
    found.called(
        read.text(message.get("tool_call_id")),
        output=read.text(extra.get("raw_output")) or read.text(extra.get("exception_info")),
        exit_status=status,
        is_error=status not in {None, 0},
        milliseconds=round((until - since) * 1000) if known and since and until else None,
    )


def _end(found: read.Transcript, message: read.Fields, extra: read.Fields) -> None:
    how = read.word(extra.get("exit_status"))
    found.claimed_success = how == "Submitted"
    if how is not None and how != "Submitted":
        reason = read.word(extra.get("exception_str")) or read.word(message.get("content")) or ""
        found.say("system", f"{how}: {reason}")
        if how.endswith("Error"):
            found.api_error = f"{how}: {reason}"


def _time(extra: read.Fields) -> float | None:
    value = extra.get("timestamp")
    return float(value) if isinstance(value, int | float) and 0 < value < 2**40 else None
