"""What a template file says of environment, tasks, limits and network."""

from __future__ import annotations

from dataclasses import replace

from forkyard.model.hosts import rule_problem
from forkyard.model.workspace import (
    WORKSPACE_ROOT,
    Limits,
    NetworkPlan,
    NetworkPolicy,
    OnFailure,
    TaskType,
    TemplateTask,
)
from forkyard.wire.fields import VARIABLE_NAME, Section, argument_problem, kind
from forkyard.wire.template_sources import read_secret_name

MEGABYTE = 1024**2

_MOST_MEGABYTES = 64 * 1024**2
_LEAST_MEMORY_MEGABYTES = 16
_LEAST_INODES = 64
_MOST_INODES = 2**32
_SEEN_BY_ALL = (
    "cannot be used here: every fork, and so every agent, would see the value; give it to the task"
    " that needs it (`secrets` of an ON_CREATE task), or let the gateway add it to requests"
)
_SEEN_LATER = (
    "cannot be given to {type} tasks: they run in every fork, beside the agent, who could read it"
)
_NO_ROOT = (
    "needs an image of its own: with image host nothing can be installed as root; install it on"
    " this machine, or into the workspace user's home"
)
_OTHER_TYPES = dict.fromkeys(("PRE_START", "ON_START", "POST_CREATE", "POST_STOP"), "")


def read_variables(runtime: Section) -> dict[str, str]:
    """Read `envVars`."""
    values: dict[str, str] = {}
    for entry in runtime.sections("envVars"):
        name = entry.text("key", required=True)
        value: str | None = None
        if entry.has("fromSecret") or entry.has("valueFrom"):
            key = "fromSecret" if entry.has("fromSecret") else "valueFrom"
            entry.problem(key, _SEEN_BY_ALL)
            entry.asked.add(key)
        elif not entry.has("value"):
            entry.problem("value", "is missing")
        if entry.has("value"):
            value = _value(entry)
        entry.asked.add("value")
        entry.finish()
        if _is_new_variable(entry, name, values) and name is not None and value is not None:
            values[name] = value
    return values


def _value(entry: Section) -> str | None:
    node = entry.node("value")
    if node is None:
        return None
    if not isinstance(node.value, str):
        hint = "; put it in quotes" if isinstance(node.value, bool | int | float) else ""
        entry.problem("value", f"must be text, not {kind(node.value)}{hint}")
        return None
    if (wrong := argument_problem(node.value)) is not None:
        entry.problem("value", wrong)
    return node.value


def _is_new_variable(entry: Section, name: str | None, known: dict[str, str]) -> bool:
    if name is None:
        return False
    if VARIABLE_NAME.fullmatch(name) is None:
        entry.problem("key", f"{name!r} is no name of an environment variable")
        return False
    if name in known:
        entry.problem("key", f"{name} is set twice")
        return False
    return True


def read_tasks(runtime: Section, *, is_host: bool) -> tuple[TemplateTask, ...]:
    """Read `tasks`."""
    tasks: list[TemplateTask] = []
    names: set[str] = set()
    for entry in runtime.sections("tasks"):
        name = entry.name("name", required=True)
        chosen = TaskType(entry.choice("type", tuple(TaskType), _OTHER_TYPES) or TaskType.ON_CREATE)
        directory = _working_directory(entry)
        policy = entry.choice("onFailure", tuple(OnFailure), {}) or OnFailure.ABORT
        run = entry.argument("run", required=True)
        as_root = entry.flag("runAsRoot", default=False)
        background = entry.flag("background", default=False)
        evaluations = entry.flag("evaluations", default=False)
        secrets = _task_secrets(entry, chosen)
        entry.finish({"envVars": ": write them below runtime, for all tasks, or into the command"})
        if as_root and is_host:
            entry.problem("runAsRoot", _NO_ROOT)
        if background and chosen is TaskType.PRE_STOP:
            entry.problem("background", "has no meaning for a PRE_STOP task: the stop waits for it")
        if evaluations and chosen is not TaskType.POST_START:
            entry.problem("evaluations", "has a meaning for POST_START tasks only")
        if name is not None and name in names:
            entry.problem("name", f"{name} is the name of two tasks")
        if name is None or run is None:
            continue
        names.add(name)
        tasks.append(
            TemplateTask(
                name=name,
                run=run,
                working_directory=directory,
                on_failure=OnFailure(policy),
                type=chosen,
                run_as_root=as_root,
                background=background,
                secrets=secrets,
                evaluations=evaluations,
            )
        )
    return tuple(tasks)


def _task_secrets(entry: Section, chosen: TaskType) -> dict[str, str]:
    secrets: dict[str, str] = {}
    if entry.has("secrets") and chosen is not TaskType.ON_CREATE:
        entry.problem("secrets", _SEEN_LATER.format(type=chosen.value))
    for one in entry.sections("secrets"):
        variable = one.text("key", required=True)
        secret = read_secret_name(one, "fromSecret")
        one.finish()
        if _is_new_variable(one, variable, secrets) and variable is not None and secret is not None:
            secrets[variable] = secret
    return secrets


def _working_directory(entry: Section) -> str:
    directory = entry.text("workingDir")
    if directory is None:
        return WORKSPACE_ROOT
    if not is_inside_path(directory):
        entry.problem("workingDir", f"{directory!r} must be an absolute path without `..`")
    return directory


def is_inside_path(path: str) -> bool:
    """Say whether a path inside a workspace is absolute and has no `..`."""
    return path.startswith("/") and ".." not in path.split("/")


def read_limits(section: Section) -> Limits:
    """Read `limit`."""
    limits = Limits()
    cpu = _amount(section, "cpu", "millicores", least=10, most=1_024_000)
    memory = _amount(
        section, "memory", "megabytes", least=_LEAST_MEMORY_MEGABYTES, most=_MOST_MEGABYTES
    )
    processes = section.integer("processes", least=4, most=4_000_000)
    storage = section.section("storage")
    if storage is not None:
        megabytes = storage.integer("megabytes", least=1, most=_MOST_MEGABYTES)
        inodes = storage.integer("inodes", least=_LEAST_INODES, most=_MOST_INODES)
        hard = storage.flag("hard", default=False)
        storage.finish()
        if not storage.has("megabytes") and not storage.has("inodes"):
            storage.problem("megabytes", "is missing")
        elif hard and not storage.has("megabytes"):
            storage.problem("hard", "needs megabytes, which it makes the file system enforce")
        if megabytes is not None:
            limits = replace(limits, disk_bytes=megabytes * MEGABYTE)
        limits = replace(limits, disk_inodes=inodes, disk_is_hard=hard)
    section.finish()
    if cpu is not None:
        limits = replace(limits, cpu_millicores=cpu)
    if memory is not None:
        limits = replace(limits, memory_bytes=memory * MEGABYTE)
    if processes is not None:
        limits = replace(limits, processes=processes)
    return limits


def _amount(section: Section, key: str, unit: str, *, least: int, most: int) -> int | None:
    below = section.section(key)
    if below is None:
        return None
    amount = below.integer(unit, least=least, most=most, required=True)
    below.finish()
    return amount


def read_network(section: Section) -> NetworkPlan:
    """Read `network`."""
    plan = NetworkPlan()
    build, workspace = _policy(section, "build"), _policy(section, "workspace")
    allow = section.texts("allow", rule_problem)
    section.finish()
    plan = NetworkPlan(
        build=build or plan.build,
        workspace=workspace or plan.workspace,
        allow=tuple(dict.fromkeys(host.lower() for host in allow)),
    )
    uses = NetworkPolicy.ALLOWLIST in {plan.build, plan.workspace}
    if uses and not section.has("allow"):
        section.problem("allow", "is missing; allowlist needs the names of the hosts")
    elif section.has("allow") and not uses:
        section.problem("allow", "has a meaning with build or workspace: allowlist only")
    return plan


def _policy(section: Section, key: str) -> NetworkPolicy | None:
    words = (NetworkPolicy.OPEN, NetworkPolicy.ALLOWLIST, NetworkPolicy.NONE)
    if section.has(key) and section.values[key].value == NetworkPolicy.GATEWAY:
        section.asked.add(key)
        section.problem(key, "gateway is for attempts, which have it anyway; use open or none")
        return None
    found = section.choice(key, words, {})
    return None if found is None else NetworkPolicy(found)
