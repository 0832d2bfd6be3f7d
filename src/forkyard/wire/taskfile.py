"""The task file: what a person asks for, as one RunRequest.

One task, or ``tasks:`` with the rest shared; a key given in a task replaces the shared one.
"""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass, field, replace

from forkyard.errors import Problem
from forkyard.model.budget import Budget
from forkyard.model.run import AgentSpec, RunLimits
from forkyard.model.verdict import Check, ReportFormat
from forkyard.model.workspace import REPOSITORY
from forkyard.wire import yaml
from forkyard.wire.fields import Problems, Section, argument_problem, root_section
from forkyard.wire.task_network import read_network
from forkyard.wire.template_vars import read_values
from forkyard.wire.templatefile import is_inside_path

COMMAND_DRIVER = "command"
MOST_ATTEMPTS = 64
MOST_PARALLEL = 64
MOST_REPEATS = 10
MODEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@+-]{0,127}", re.ASCII)
PROVIDER = re.compile(r"[a-z0-9][a-z0-9-]{0,62}", re.ASCII)
"""A host name inside the sandbox."""
MODEL_DRIVERS = ("claude-code", "codex", "gemini", "mini-swe-agent", "opencode")
"""Drivers that build their own command and talk to a model."""
LATER_DRIVERS = ("aider",)
LATER_REPORTS = ("go-test", "metric", "tap")

_USE_COMMAND = "; use driver: command with the shell command that starts it"
_SHARED = (
    "prompt", "start", "repository", "agents", "scope", "checks", "held_out", "protected",
    "network",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class StartRequest:
    """Where attempts start from: exactly one of snapshot, template and repository_path."""

    snapshot: str | None = None
    template: str | None = None
    repository_path: str | None = None
    """As written; relative to the request's folder."""
    include_uncommitted: bool = False
    values: tuple[tuple[str, str], ...] = ()
    """With template: of its `vars`."""
    setup: tuple[str, ...] = ()
    """With a repository: shell commands run once in its copy, the network open."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRequest:
    """One task as asked for; names and folders not looked up yet."""

    name: str
    prompt: str
    start: StartRequest
    agents: tuple[AgentSpec, ...]
    repository: str = REPOSITORY
    scope: tuple[str, ...] = ()
    checks: tuple[Check, ...] = ()
    held_out: tuple[str, ...] = ()
    """Folders as written; relative to the request's folder."""
    protected: tuple[str, ...] = ()
    allow: tuple[str, ...] | None = None
    """Hosts that attempts may reach; empty: none; None: as the template says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRequest:
    """One submission as asked for."""

    name: str
    tasks: tuple[TaskRequest, ...]
    folder: str
    """Where relative paths start: the task file's folder, or the caller's working directory."""
    file: str | None = None
    """The task file's name, for messages; None in the quick form."""
    limits: RunLimits = field(default_factory=RunLimits)
    document: yaml.Document | None = field(default=None, compare=False, repr=False)
    """The task file as it was read; None in the quick form."""

    def line_of(self, key: str) -> int | None:
        """Give the line of a dotted key, wherever the file has it: at the task, or shared."""
        if self.document is None:
            return None
        path = tuple(int(part) if part.isdecimal() else part for part in key.split("."))
        in_task = path if path[0] == "tasks" else ("tasks", 0, *path)
        shared = path[2:] if path[0] == "tasks" else path
        if shared and self.document.has(in_task[:3]):
            return self.document.position(in_task)
        if shared and self.document.has(shared[:1]):
            return self.document.position(shared)
        return self.document.position(path)

    def located(self, problem: Problem) -> Problem:
        """Give a problem that was found late the place that it has in the file."""
        if problem.key is None or problem.line is not None or self.document is None:
            return problem
        return replace(problem, file=self.file, line=self.line_of(problem.key))

    def resolve(self, path: str) -> str:
        """Give a path of this request as an absolute path on this machine."""
        return posixpath.normpath(posixpath.join(self.folder, path))


def parse_run(text: str, file: str | None = None, *, folder: str | None = None) -> RunRequest:
    """Read a task file.

    Args:
        text: The whole file.
        file: Its name, for messages.
        folder: Where its relative paths start; by default the folder part of `file`.

    Raises:
        ConfigError: With every problem at once: file, line, dotted key.
    """
    document = yaml.load(text, file)
    problems = Problems(file)
    tasks: tuple[TaskRequest, ...] = ()
    name: str | None = None
    limits = RunLimits()
    root = root_section(document, problems)
    if root is not None:
        name = root.name("name", required=True)
        below = root.section("limits")
        if below is not None:
            limits = _limits(below)
        tasks = _tasks(root, name) if root.has("tasks") else _one_task(root, name)
        root.asked.update(("tasks", *_SHARED))
        root.finish({"model": ", write it at each agent", "budget": ", write it below limits"})
    problems.raise_if_any()
    place = folder if folder is not None else posixpath.dirname(file or "") or "."
    return RunRequest(
        name=name or "run", tasks=tasks, folder=place, file=file, limits=limits, document=document
    )


def _one_task(root: Section, name: str | None) -> tuple[TaskRequest, ...]:
    task = _task(root, root, name or "run")
    return () if task is None else (task,)


def _tasks(root: Section, run: str | None) -> tuple[TaskRequest, ...]:
    tasks: list[TaskRequest] = []
    names: set[str] = set()
    entries = root.sections("tasks")
    node = root.values["tasks"]
    if isinstance(node.value, list) and not node.value:
        root.problem("tasks", "is empty; give at least one task")
    for entry in entries:
        name = entry.name("name", required=True)
        task = _task(entry, root, name or run or "run")
        entry.asked.update(_SHARED)
        entry.finish({"limits": "; limits are shared by the whole run, write them at the top"})
        if name is not None and name in names:
            entry.problem("name", f"{name} is the name of two tasks")
        names.add(name or "")
        if task is not None:
            tasks.append(task)
    # Shared keys that every task replaces must still be right.
    if entries and tasks:
        for key in _SHARED:
            if root.has(key) and all(entry.has(key) for entry in entries):
                _read_shared(root, key)
    return tuple(tasks)


def _read_shared(root: Section, key: str) -> None:
    match key:
        case "prompt":
            root.text(key)
        case "start":
            _start(root)
        case "network":
            read_network(root)
        case "repository":
            _repository(root)
        case "agents":
            _agents(root)
        case "checks":
            _checks(root)
        case _:
            root.texts(key, pattern_problem if key != "held_out" else _folder_problem)


def _task(section: Section, shared: Section, name: str) -> TaskRequest | None:
    def where(key: str) -> Section:
        return section if section.has(key) or not shared.has(key) else shared

    before = len(section.problems.found)
    prompt = where("prompt").argument("prompt", required=True)
    start = _start(where("start"))
    agents = _agents(where("agents"))
    task = TaskRequest(
        name=name,
        prompt=prompt or "",
        start=start,
        agents=agents,
        repository=_repository(where("repository")),
        scope=where("scope").texts("scope", pattern_problem),
        checks=_checks(where("checks")),
        held_out=where("held_out").texts("held_out", _folder_problem),
        protected=where("protected").texts("protected", pattern_problem),
        allow=read_network(where("network")),
    )
    _drop_repeated(section.problems)
    return task if len(section.problems.found) == before else None


def _drop_repeated(problems: Problems) -> None:
    # A shared section is read once for each task that uses it; its problems are told once.
    problems.found[:] = list(dict.fromkeys(problems.found))


def _start(section: Section) -> StartRequest:
    below = section.section("start", required=True)
    if below is None:
        return StartRequest()
    snapshot, template = below.name("snapshot"), below.name("template")
    repository = below.section("repository")
    values = read_values(below)
    below.finish()
    if below.has("vars") and not below.has("template"):
        below.problem("vars", "are a template's; give the template that has them")
    given = [key for key in ("snapshot", "template", "repository") if below.has(key)]
    if len(given) != 1:
        what = " and ".join(given) + " exclude each other" if given else "nothing to start from"
        below.problem(None, f"{what}; give one of snapshot, template and repository")
    if repository is None:
        return StartRequest(snapshot=snapshot, template=template, values=values)
    path = repository.text("path", required=True)
    uncommitted = repository.flag("include_uncommitted", default=False)
    repository.finish({"url": " here; make a template with that url and start from it"})
    if path is not None and path.startswith("~"):
        repository.problem("path", f"{path!r} starts with ~, which is not expanded; write it out")
    return StartRequest(repository_path=path, include_uncommitted=uncommitted)


def _repository(section: Section) -> str:
    path = section.text("repository")
    if path is None:
        return REPOSITORY
    if not is_inside_path(path) or path.rstrip("/") == "":
        section.problem("repository", f"{path!r} must be an absolute path inside the workspace")
        return REPOSITORY
    return posixpath.normpath(path)


def _agents(section: Section) -> tuple[AgentSpec, ...]:
    agents: list[AgentSpec] = []
    names: set[str] = set()
    entries = section.sections("agents", required=True)
    listed = section.values.get("agents")
    if listed is not None and listed.value == []:
        section.problem("agents", "is empty; give at least one agent")
    for entry in entries:
        name = entry.name("name", required=True)
        later = dict.fromkeys(LATER_DRIVERS, _USE_COMMAND)
        driver = entry.choice("driver", (COMMAND_DRIVER, *MODEL_DRIVERS), later)
        is_command = driver == COMMAND_DRIVER or not entry.has("driver")
        command = entry.argument("command", required=is_command)
        if driver in MODEL_DRIVERS and entry.has("command"):
            entry.problem("command", f"has no meaning with driver {driver}; remove one of them")
        model, provider = _words(entry, "model", MODEL), _words(entry, "provider", PROVIDER)
        gateway = entry.flag("gateway", default=False)
        if driver in MODEL_DRIVERS and entry.has("gateway"):
            entry.problem("gateway", f"has no meaning with driver {driver}, which always has it")
        variables = entry.variables(
            "env", reserved={"PROMPT": "PROMPT carries the task's prompt and cannot be set"}
        )
        attempts = entry.integer("attempts", least=1, most=MOST_ATTEMPTS)
        entry.finish()
        if name is not None and name in names:
            entry.problem("name", f"{name} is the name of two agents")
        names.add(name or "")
        agents.append(
            AgentSpec(
                name=name or "",
                driver=driver or COMMAND_DRIVER,
                command=(command or "") if is_command else "",
                variables=variables,
                attempts=attempts or 1,
                model=model,
                provider=provider,
                gateway=gateway and is_command,
            )
        )
    return tuple(agents)


def _words(section: Section, key: str, shape: re.Pattern[str]) -> str:
    found = section.text(key)
    if found is None:
        return ""
    if shape.fullmatch(found) is None:
        section.problem(key, f"{found[:60]!r} is no name of a {key}")
        return ""
    return found


def _checks(section: Section) -> tuple[Check, ...]:
    checks: list[Check] = []
    names: set[str] = set()
    for entry in section.sections("checks"):
        name = entry.name("name", required=True)
        run = entry.argument("run", required=True)
        report = entry.choice("report", tuple(ReportFormat), dict.fromkeys(LATER_REPORTS, ""))
        timeout = entry.duration("timeout")
        must_fail = entry.texts("must_fail", argument_problem)
        entry.finish()
        if must_fail and report != ReportFormat.JUNIT:
            entry.problem("must_fail", "needs report: junit, which tells tests apart")
        if name is not None and name in names:
            entry.problem("name", f"{name} is the name of two checks")
        names.add(name or "")
        check = Check(
            name=name or "",
            run=run or "",
            report=ReportFormat(report or "exit"),
            must_fail=must_fail,
        )
        checks.append(check if timeout is None else replace(check, timeout_seconds=timeout))
    return tuple(checks)


def _limits(section: Section) -> RunLimits:
    limits = RunLimits()
    parallel = section.integer("parallel", least=1, most=MOST_PARALLEL)
    timeout, deadline = section.duration("attempt_timeout"), section.duration("deadline")
    repeats = section.integer("baseline_repeats", least=1, most=MOST_REPEATS)
    budget, attempt_budget = _budget(section, "budget"), _budget(section, "attempt_budget")
    requests = section.count("attempt_requests")
    section.finish()
    return RunLimits(
        parallel=parallel or limits.parallel,
        attempt_timeout_seconds=timeout or limits.attempt_timeout_seconds,
        deadline_seconds=deadline,
        baseline_repeats=repeats or limits.baseline_repeats,
        budget=budget,
        attempt_budget=attempt_budget,
        attempt_requests=requests,
    )


def _budget(section: Section, key: str) -> Budget:
    below = section.section(key)
    if below is None:
        return Budget()
    tokens, micro_usd = below.count("tokens"), below.micro_usd("usd")
    below.finish()
    if not below.values:
        below.problem(None, "is empty; give tokens, usd or both, or remove the key")
    return Budget(tokens=tokens, micro_usd=micro_usd)


def pattern_problem(pattern: str) -> str | None:
    """Say what is wrong with a path pattern of the repository, or None."""
    if pattern.startswith("/") or ".." in pattern.split("/"):
        return f"{pattern!r} must be relative to the repository's root, without `..`"
    return None


def _folder_problem(folder: str) -> str | None:
    if folder.startswith("~"):
        return f"{folder!r} starts with ~, which is not expanded; write it out"
    return None
