"""A state directory whose agents reach a scripted model through the real gateway."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from forkyard import connect_blocking
from forkyard.config import Layout
from leftovers import processes
from projects import FIX, forkyard, git, make_repository, run_result
from scripted_model.running import ScriptedModel, start_model
from scripted_model.shapes import Object

PATIENCE_SECONDS = 120.0
SECRET = "MODEL_KEY"  # noqa: S105 - its name
CANARY = "sk-dummy-canary-5d1e09b7c2a84f"
MODEL = "house-model"

ASK = """\
import json, sys, time, urllib.error, urllib.request

def ask(scenario="default", most=1000):
    body = {"model": "house-model", "max_tokens": most,
            "messages": [{"role": "user", "content": f"[[scenario:{scenario}]] go on"}]}
    request = urllib.request.Request(
        "http://anthropic/v1/messages", data=json.dumps(body).encode(),
        headers={"content-type": "application/json", "anthropic-version": "2023-06-01"})
    try:
        with urllib.request.urlopen(request, timeout=100) as answer:
            print(answer.status, json.load(answer)["content"][0]["text"], flush=True)
    except urllib.error.HTTPError as error:
        print(error.code, error.read().decode(), file=sys.stderr, flush=True)
        sys.exit(1)

if __name__ == "__main__":
    ask(*sys.argv[1:])
"""
"""An agent in a few lines, for tests that need no real one."""

GATEWAY = """\
providers:
  - {{name: anthropic, api: anthropic, url: "{url}", secret: MODEL_KEY}}
  - {{name: openai, api: openai, url: "{url}", secret: MODEL_KEY}}
  - {{name: gemini, api: gemini, url: "{url}", secret: NOT_SET}}
prices:
  - {{model: house-model, input: 3, output: 15, cache_read: 0.3, cache_write: 3.75}}
"""

SCENARIOS: Object = {
    "scenarios": {
        "default": {
            "toolless": True,
            "turns": [
                {
                    "text": "Hello.",
                    "usage": {"input": 1000, "cache_read": 500, "cache_write": 40, "output": 70},
                }
            ],
        },
        **{
            f"status-{status}": {
                "toolless": True,
                "turns": [{"text": "no", "fault": {"status": status}}],
            }
            for status in (400, 401, 403, 413, 500)
        },
    }
}


TABLE_PRICES = """\
providers:
  - {{name: anthropic, api: anthropic, url: "{url}", secret: MODEL_KEY}}
  - {{name: openai, api: openai, url: "{url}", secret: MODEL_KEY}}
  - {{name: gemini, api: gemini, url: "{url}", secret: MODEL_KEY}}
"""
"""Settings with the prices of the installed table."""

MEND: Object = {
    "scenarios": {
        "default": {
            "turns": [
                {
                    "thinking": "Look first.",
                    "text": "I will look at the file.",
                    "actions": [{"read": "adder.py"}],
                    "usage": {"input": 12, "cache_write": 9000, "output": 60, "reasoning": 10},
                },
                {
                    "text": "The operator is wrong.",
                    "actions": [
                        {
                            "edit": {
                                "path": "adder.py",
                                "old": "    return a - b",
                                "new": "    return a + b",
                            }
                        }
                    ],
                    "usage": {"input": 15, "cache_read": 9000, "cache_write": 300, "output": 90},
                },
                {
                    "actions": [{"run": "python3 -B check.py"}],
                    "usage": {"input": 9, "cache_read": 9420, "cache_write": 150, "output": 70},
                },
                {
                    "text": "Fixed add().\n\nKnown limitations: only integers were tried.",
                    "usage": {"input": 9, "cache_read": 9570, "cache_write": 100, "output": 30},
                },
            ]
        }
    }
}
"""Looks at the repository, mends it, checks it, and states a limitation."""


@dataclass(frozen=True, slots=True)
class ModelYard:
    """See the module."""

    folder: Path
    layout: Layout
    model: ScriptedModel

    def run(self, agents: str, *, limits: str = "", code: int | None = None) -> dict[str, Any]:
        """Run a task with these agents to its end."""
        done = forkyard("run", self.task(agents, limits), "--json", directory=self.folder)
        if code is not None:
            assert done.returncode == code, done.stderr + done.stdout
        return run_result(done)

    def submit(self, agents: str, *, limits: str = "", failpoint: str = "") -> str:
        """Submit such a task, to a server that dies at a failpoint if asked; give the run's id."""
        armed = {"FORKYARD_FAILPOINT": failpoint} if failpoint else {}
        if failpoint:
            with connect_blocking() as client:
                client.stop_server()
        done = forkyard(
            "run", self.task(agents, limits), "--detach", directory=self.folder, variables=armed
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip().splitlines()[-1]

    def task(self, agents: str, limits: str = "") -> Path:
        """Write a task file."""
        file = self.folder / "task.yaml"
        file.write_text(
            "name: models\nprompt: Make the check pass.\n"
            "start: {repository: {path: repo, include_uncommitted: true}}\n"
            f"agents:\n{agents}\n"
            f"limits: {{baseline_repeats: 1, attempt_timeout: 2m, {limits}}}\n"
            "checks:\n  - {name: check, run: python3 -B check.py}\n"
        )
        return file

    def result(self, run: str) -> dict[str, Any]:
        """Wait for a run's end, with a new server where none runs."""
        return run_result(forkyard("watch", run, "--json", directory=self.folder))

    def wait_for_end(self, run: str, patience_seconds: float = 200.0) -> None:
        """Wait until a run is over, or for a while."""
        deadline = time.monotonic() + patience_seconds
        with connect_blocking() as client:
            while client.runs.get(run).ended_at is None and time.monotonic() < deadline:
                time.sleep(1)

    def output_of(self, attempt: str) -> str:
        """Read what an attempt's agent printed so far."""
        with connect_blocking() as client:
            return b"".join(client.runs.log(attempt)).decode()

    def wait_for_output(self, run: str, text: str) -> None:
        """Wait until the first attempt's agent has printed a text."""

        def is_there() -> bool:
            with connect_blocking() as client:
                attempt = client.runs.get(run).tasks[0].attempts[0].id
            return text in self.output_of(attempt)

        self.wait_until(is_there)

    def wait_until(self, is_so: Callable[[], bool]) -> None:
        """Wait for a condition."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not is_so():
            assert time.monotonic() < deadline, "it did not come true in time"
            time.sleep(0.05)

    def kill_gateway(self) -> int:
        """Kill the gateway; give the process id it had."""
        pid = self.gateway()
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        return pid

    def gateway(self) -> int | None:
        """Give the process id of the gateway that runs."""
        home = os.fsencode(self.layout.home)
        return next(
            (
                one.pid
                for one in processes().values()
                if b"forkyard.gateway.main" in one.words and home in one.words
            ),
            None,
        )

    def kill_server(self) -> None:
        """Kill the server."""
        with connect_blocking() as client:
            pid = int(client.version().pid)
        os.kill(pid, signal.SIGKILL)
        # one that this process started stays as a zombie, which is not listed
        self.wait_until(lambda: pid not in processes())

    def billed(self) -> tuple[int, int]:
        """Give how many requests the provider billed so far, and how many tokens."""
        bills = self.model.billed()
        return (
            sum(one.status == 200 for one in bills),
            sum(one.usage.whole_input + one.usage.output for one in bills),
        )


@contextmanager
def model_yard(
    home: Path, folder: Path, scenarios: Object = SCENARIOS, gateway: str = GATEWAY
) -> Iterator[ModelYard]:
    """Give a yard with a model, a key and a repository that holds a bug."""
    with start_model(folder, scenarios) as model, pytest.MonkeyPatch.context() as patch:
        patch.setenv("FORKYARD_HOME", str(home))
        (home / "gateway.yaml").write_text(gateway.format(url=model.url))
        repository = make_repository(folder / "repo")
        (repository / "ask.py").write_text(ASK)
        git(repository, "add", ".")
        git(repository, "commit", "-qm", "an agent")
        with connect_blocking() as client:
            client.secrets.set(SECRET, CANARY)
        yield ModelYard(folder, Layout(home), model)


def command_agent(command: str, *, name: str = "mine", more: str = "") -> str:
    """Write an agent of driver `command`, let in at the gateway, as a line of a task file."""
    return f"  - {{name: {name}, command: {command!r}, model: {MODEL}, provider: anthropic{more}}}"


ASK_AND_FIX = f"python3 -B ask.py default; {FIX}"
