"""Driver of Gemini CLI: its bundle on a Node.js that is brought along, events as JSON lines."""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import datetime

from forkyard.agents import transcript as read
from forkyard.agents.connection import (
    DUMMY_KEY,
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
    "GEMINI_API_KEY",
    "GEMINI_CLI_HOME",
    "GOOGLE_API_KEY",
    "GOOGLE_APPLICATION_CREDENTIALS",
    "GOOGLE_GEMINI_BASE_URL",
    "GOOGLE_GENAI_USE_GCA",
    "GOOGLE_GENAI_USE_VERTEXAI",
)
_SETTINGS = {
    "security": {
        "auth": {"selectedType": "gemini-api-key"},
        "folderTrust": {"enabled": False},
    },
    "privacy": {"usageStatisticsEnabled": False},
    "telemetry": {"enabled": False},
    "general": {
        "disableAutoUpdate": True,
        "disableUpdateNag": True,
        "enableAutoUpdate": False,
        "enableAutoUpdateNotification": False,
        "maxAttempts": 3,
    },
}


class Gemini:
    """Gemini CLI by Google."""

    name = "gemini"
    title = "Gemini CLI"
    api: str | None = "gemini"
    default_model: str | None = "gemini-2.5-pro"
    recipe: Recipe | None = pinned(name)

    def check(self, agent: AgentSpec) -> ConfigError | None:
        """Refuse what it cannot honour."""
        return problem_with(agent, self.name, _FIXED, apis=("gemini",))

    def command(self, agent: AgentSpec, task: Task) -> AgentCommand:
        """Run one prompt to its end, every tool allowed: the sandbox is the limit."""
        place = folder(self.name)
        return AgentCommand(
            argv=(
                program(self.name, "node/bin/node"),
                program(self.name, "bundle/gemini.js"),
                "--model",
                agent.model or self.default_model or "",
                "--yolo",
                "--output-format",
                "stream-json",
                # One word, so that a prompt may begin with a dash.
                f"--prompt={prompt_with_request(task.prompt)}",
            ),
            working_directory=task.repository,
            variables=variables_of(
                agent,
                # It would start itself a second time for more memory.
                usual={"GEMINI_CLI_NO_RELAUNCH": "true", "GEMINI_CLI_TRUST_WORKSPACE": "true"},
                fixed={
                    "GOOGLE_GEMINI_BASE_URL": f"http://{provider_of(agent, 'gemini')}",
                    "GEMINI_API_KEY": DUMMY_KEY,
                    "GEMINI_CLI_HOME": place,
                },
            ),
            files={f"{place}/.gemini/settings.json": json.dumps(_SETTINGS, indent=1)},
        )

    def ending(
        self, agent: AgentSpec, result: ExecResult, transcript: Trajectory | None = None
    ) -> AgentEnding:
        """Go by the exit status, which is a remainder of an HTTP status, and the last event."""
        return ending_of(agent, result, transcript)

    def trajectory(self, lines: Iterable[str]) -> Trajectory | None:
        """Read the stream of events; the assistant's words come in pieces."""
        reading = _Reading()
        for line in read.objects(lines, reading.found):
            reading.take(line)
        return reading.done()


class _Reading:
    """Pieces of the message under way, and when each tool began."""

    def __init__(self) -> None:
        self.found = read.Transcript()
        self._pieces: list[str] = []
        self._length = 0
        self._since: dict[str, float] = {}

    def take(self, line: read.Fields) -> None:
        found = self.found
        kind = line.get("type")
        if kind == "message" and line.get("role") == "assistant":
            found.api_error = None
            piece = read.text(line.get("content"))
            if self._length <= read.LONGEST_TEXT:
                self._pieces.append(piece)
                self._length += len(piece)
            return
        self._flush()
        match kind:
            case "init":
                found.session = read.word(line.get("session_id"))
                found.model = read.word(line.get("model"))
            case "message":
                found.say("user", read.text(line.get("content")))
            case "tool_use":
                self._use(line)
            case "tool_result":
                self._result(line)
            case "error":
                found.say("system", read.text(line.get("message")))
                if line.get("severity") != "warning":
                    found.api_error = read.word(line.get("message"))
            case "result":
                _end(found, line)
            case _:
                found.skipped += 1

    def done(self) -> Trajectory:
        self._flush()
        return self.found.done()

    def _flush(self) -> None:
        if self._pieces:
            self.found.say("assistant", read.text("".join(self._pieces)))
            self._pieces = []
            self._length = 0

    def _use(self, line: read.Fields) -> None:
        identity = read.text(line.get("tool_id"))
        began = _seconds(line.get("timestamp"))
        if began is not None and len(self._since) < read.MOST_STEPS:
            self._since[identity] = began
        self.found.call(
            identity,
            ToolCall(
                tool=read.word(line.get("tool_name")) or "unnamed",
                input=read.shown(line.get("parameters")),
            ),
        )

    def _result(self, line: read.Fields) -> None:
        identity = read.text(line.get("tool_id"))
        began = self._since.pop(identity, None)
        ended = _seconds(line.get("timestamp"))
        output = read.shown(line.get("output"))
        error = read.fields(line.get("error"))
        milliseconds = None
        if began is not None and ended is not None and ended >= began:
            milliseconds = round((ended - began) * 1000)
        self.found.called(
            identity,
            output=output or read.text(error.get("message")),
            is_error=line.get("status") == "error",
            milliseconds=milliseconds,
        )


def _end(found: read.Transcript, line: read.Fields) -> None:
    found.claimed_success = line.get("status") == "success"
    if found.claimed_success:
        found.api_error = None
    else:
        error = read.fields(line.get("error"))
        found.api_error = read.word(error.get("message")) or found.api_error or "no reason given"
    stats = read.fields(line.get("stats"))
    cached = read.number(stats.get("cached")) or 0
    everything = read.number(stats.get("input_tokens")) or 0
    if stats:
        # Its output leaves thoughts out, though they are paid for: the ledger has them.
        found.claimed_tokens = TokenCounts(
            input=max(0, everything - cached),
            cache_read=cached,
            output=read.number(stats.get("output_tokens")) or 0,
        )


def _seconds(value: object) -> float | None:
    try:
        return datetime.fromisoformat(read.text(value)[:40]).timestamp()
    except (ValueError, OverflowError):
        return None
