"""The quick form of a task: ``forkyard run "PROMPT" -a AGENT --check COMMAND``.

AGENT is ``NAME='SHELL COMMAND'``, a driver's name, or ``DRIVER:MODEL``.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Mapping, Sequence

from forkyard.errors import ConfigError, Problem
from forkyard.model.hosts import rule_problem
from forkyard.model.run import AgentSpec, RunLimits
from forkyard.model.verdict import Check, ReportFormat
from forkyard.wire.fields import NAME, NAME_RULE, argument_problem
from forkyard.wire.taskfile import (
    COMMAND_DRIVER,
    LATER_DRIVERS,
    MODEL,
    MODEL_DRIVERS,
    MOST_ATTEMPTS,
    RunRequest,
    StartRequest,
    TaskRequest,
    pattern_problem,
)

_Report = Callable[[str, str | None], None]
_REPORT = re.compile(r"\$REPORT\b|\$\{REPORT\}")
"""A check that names it writes JUnit XML there, and is told test by test."""


def quick_request(
    prompt: str,
    *,
    agents: Sequence[str],
    cwd: str,
    attempts: int = 1,
    checks: Sequence[str] = (),
    include_uncommitted: bool = True,
    limits: RunLimits | None = None,
    repository_path: str = ".",
    snapshot: str | None = None,
    template: str | None = None,
    name: str | None = None,
    protected: Sequence[str] = (),
    scope: Sequence[str] = (),
    held_out: Sequence[str] = (),
    setup: Sequence[str] = (),
    allow: Sequence[str] = (),
    values: Mapping[str, str] | None = None,
) -> RunRequest:
    """Build the request of the quick form.

    Args:
        prompt: What the agents are asked.
        agents: Each ``NAME=SHELL COMMAND``, ``DRIVER`` or ``DRIVER:MODEL``.
        cwd: Absolute; relative paths start there.
        attempts: Of each agent.
        checks: Shell commands, each one test that passes when it exits 0; one that names $REPORT
            writes JUnit XML there instead.
        include_uncommitted: Start from the working tree as it lies.
        limits: Of the whole run.
        repository_path: The user's repository; unused with snapshot or template.
        snapshot: Start from this instead.
        template: Start from this instead.
        name: Of run and task; by default the prompt's first words.
        protected: As in the task file.
        scope: As in the task file.
        held_out: As in the task file.
        setup: Shell commands run once in the repository's copy, with the network open, before
            anything is forked from it; unused with snapshot or template.
        allow: Hosts that the attempts may reach, beside the model.
        values: With template: of its `vars`.

    Raises:
        ConfigError: With every problem at once; keys are the flags.
    """
    found: list[Problem] = []

    def report(flag: str, message: str | None) -> None:
        if message is not None:
            found.append(Problem(message=message, key=flag))

    report("PROMPT", argument_problem(prompt) if prompt.strip() else "is empty")
    if not 1 <= attempts <= MOST_ATTEMPTS:
        report("-n", f"is {attempts}, must be from 1 to {MOST_ATTEMPTS}")
    if snapshot is not None and template is not None:
        report("--template", "excludes --snapshot; give one of them")
    if name is not None and NAME.fullmatch(name) is None:
        report("--name", f"{name!r} is no name: {NAME_RULE}")
    for flag, texts, problem in (
        ("--protected", protected, pattern_problem),
        ("--scope", scope, pattern_problem),
        ("--allow", allow, rule_problem),
    ):
        for text in texts:
            report(flag, problem(text))
    start = StartRequest(
        snapshot=snapshot, template=template, values=tuple(sorted((values or {}).items()))
    )
    if snapshot is None and template is None:
        start = StartRequest(
            repository_path=repository_path,
            include_uncommitted=include_uncommitted,
            setup=tuple(setup),
        )
    _refuse_misplaced(setup, start, report)
    task = TaskRequest(
        name=name or _slug(prompt),
        prompt=prompt,
        start=start,
        agents=_agents(agents, attempts, report),
        checks=_checks(checks, report),
        protected=tuple(protected),
        allow=tuple(dict.fromkeys(entry.lower() for entry in allow)) or None,
        scope=tuple(scope),
        held_out=tuple(held_out),
    )
    if found:
        msg = "cannot run this: " + (str(found[0]) if len(found) == 1 else f"{len(found)} problems")
        raise ConfigError(msg, hint="See `forkyard run --help`.", problems=tuple(found))
    return RunRequest(name=task.name, tasks=(task,), folder=cwd, limits=limits or RunLimits())


def _refuse_misplaced(commands: Sequence[str], start: StartRequest, report: _Report) -> None:
    for command in commands:
        report("--setup", argument_problem(command) if command.strip() else "is empty")
    if commands and start.repository_path is None:
        report("--setup", "has no meaning with --snapshot or --template")
    if start.values and start.template is None:
        report("--var", "needs --template, whose vars it sets")


def _agents(entries: Sequence[str], attempts: int, report: _Report) -> tuple[AgentSpec, ...]:
    if not entries:
        report("-a", "is missing; name at least one: -a claude-code, or -a NAME='SHELL COMMAND'")
    agents: list[AgentSpec] = []
    for entry in entries:
        taken = {agent.name for agent in agents}
        name, equals, command = entry.partition("=")
        if equals:
            agent = AgentSpec(name=name, driver=COMMAND_DRIVER, command=command, attempts=attempts)
            wrong = _command_problem(name, command, taken)
        else:
            agent = _of_driver(entry, attempts)
            wrong = _driver_problem(agent, entry, taken)
        report("-a", wrong)
        if wrong is None:
            agents.append(agent)
    return tuple(agents)


def _of_driver(entry: str, attempts: int) -> AgentSpec:
    driver, _, model = entry.partition(":")
    name = f"{driver}-{re.sub(r'[^A-Za-z0-9._-]', '-', model)}" if model else driver
    return AgentSpec(name=name[:63], driver=driver, command="", attempts=attempts, model=model)


def _driver_problem(agent: AgentSpec, entry: str, taken: set[str]) -> str | None:
    if agent.driver in LATER_DRIVERS:
        return f"driver {agent.driver} is not supported yet; write -a NAME='SHELL COMMAND'"
    if agent.driver not in MODEL_DRIVERS:
        known = ", ".join(MODEL_DRIVERS)
        return f"{entry!r} names no driver ({known}); for another write -a NAME='SHELL COMMAND'"
    if ":" in entry and MODEL.fullmatch(agent.model) is None:
        return f"{agent.model[:60]!r} is no name of a model; write -a {agent.driver}:MODEL"
    if agent.name in taken:
        return f"{agent.name} is the name of two agents"
    return None


def _command_problem(name: str, command: str, taken: set[str]) -> str | None:
    if NAME.fullmatch(name) is None:
        return f"{name!r} is no name: {NAME_RULE}"
    if not command.strip() or "\0" in command:
        return f"agent {name} has no command; write -a {name}='SHELL COMMAND'"
    if name in taken:
        return f"{name} is the name of two agents"
    return argument_problem(command)


def _checks(commands: Sequence[str], report: _Report) -> tuple[Check, ...]:
    checks: list[Check] = []
    for command in commands:
        if not command.strip() or "\0" in command:
            report("--check", "is empty")
            continue
        report("--check", argument_problem(command))
        checks.append(
            Check(
                name=_check_name(command, {c.name for c in checks}),
                run=command,
                report=ReportFormat.JUNIT if _REPORT.search(command) else ReportFormat.EXIT,
            )
        )
    return tuple(checks)


def _check_name(command: str, taken: set[str]) -> str:
    first = posixpath.basename(command.split(maxsplit=1)[0])
    base = re.sub(r"[^A-Za-z0-9._-]", "", first).lstrip("._-")[:50] or "check"
    name, number = base, 1
    while name in taken:
        number += 1
        name = f"{base}-{number}"
    return name


def _slug(prompt: str) -> str:
    words = re.findall(r"[a-z0-9]+", prompt.lower())
    return "-".join(words[:5])[:40].strip("-") or "run"
