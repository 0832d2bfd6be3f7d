"""The template file: the first seed's ``spec:``, with what cannot be honoured yet refused.

```yaml
spec:
  image: host
  repository: {path: ., include_uncommitted: true}      # or {url: https://...}
  runtime:
    envVars: [{key: LEVEL, value: high}]
    tasks: [{name: deps, type: ON_CREATE, workingDir: /workspace/repo, run: make deps}]
  limit: {cpu: {millicores: 4000}, memory: {megabytes: 8192}, storage: {megabytes: 20000}}
```
"""

from __future__ import annotations

import posixpath
from dataclasses import replace

from forkyard.model.workspace import (
    WORKSPACE_ROOT,
    Limits,
    OnFailure,
    RepositorySource,
    TemplateSpec,
    TemplateTask,
)
from forkyard.wire import yaml
from forkyard.wire.fields import VARIABLE_NAME, Problems, Section, kind, root_section

MEGABYTE = 1024**2
IMAGE_HOST = "host"
URL_SCHEMES = ("https://", "http://", "ssh://", "git://")

_MOST_MEGABYTES = 64 * 1024**2
_LEAST_MEMORY_MEGABYTES = 16
_NO_IMAGES = "; write `image: host` to use this machine's own tools"
_NO_SECRETS = ": there is no secret store; a value written here would be readable in every fork"
_LATER_TASKS = ": only ON_CREATE tasks run, once, while the template is built"


def parse_template(
    text: str, file: str | None = None, *, folder: str | None = None
) -> TemplateSpec:
    """Read a template file.

    Args:
        text: The whole file.
        file: Its name, for messages.
        folder: Where a relative repository path starts; without it the path stays as written.

    Returns:
        The recipe.

    Raises:
        ConfigError: With every problem at once: file, line, dotted key.
    """
    document = yaml.load(text, file)
    problems = Problems(file)
    spec = TemplateSpec()
    root = root_section(document, problems)
    if root is not None:
        below = root.section("spec", required=True)
        if below is not None:
            spec = _spec(below, folder)
        root.finish()
    problems.raise_if_any()
    return spec


def _spec(section: Section, folder: str | None) -> TemplateSpec:
    image = _image(section)
    repository = section.section("repository")
    source = None if repository is None else _repository(repository, folder)
    runtime = section.section("runtime")
    variables: dict[str, str] = {}
    tasks: tuple[TemplateTask, ...] = ()
    if runtime is not None:
        variables = _variables(runtime)
        tasks = _tasks(runtime)
        runtime.finish()
    limit = section.section("limit")
    limits = Limits() if limit is None else _limits(limit)
    section.finish()
    return TemplateSpec(
        image=image, repository=source, variables=variables, tasks=tasks, limits=limits
    )


def _image(section: Section) -> str:
    node = section.node("image")
    if node is None:
        return IMAGE_HOST
    if isinstance(node.value, dict):
        below = section.section("image")
        if below is not None:
            for key in below.values:
                below.problem(key, f"is not supported yet{_NO_IMAGES}")
            if not below.values:
                section.problem("image", "is empty; write `image: host`")
    elif node.value != IMAGE_HOST:
        if isinstance(node.value, str):
            section.problem("image", f"{node.value!r} is not supported yet{_NO_IMAGES}")
        else:
            section.problem("image", f"must be the word host, not {kind(node.value)}")
    return IMAGE_HOST


def _repository(section: Section, folder: str | None) -> RepositorySource | None:
    path, url = section.text("path"), section.text("url")
    uncommitted = section.flag("include_uncommitted", default=False)
    section.finish(
        {"authentication": ": only repositories that need no credential, or a path, can be used"}
    )
    if section.has("path") and section.has("url"):
        section.problem("url", "path and url exclude each other; give one of them")
        return None
    if not section.has("path") and not section.has("url"):
        section.problem(None, "needs a path on this machine or a url")
        return None
    if url is not None:
        if section.has("include_uncommitted"):
            section.problem("include_uncommitted", "applies to a path only, not to a url")
        if not url.startswith(URL_SCHEMES):
            schemes = ", ".join(URL_SCHEMES)
            section.problem("url", f"{url!r} is no repository address; start it with {schemes}")
        place = url.partition("://")[2].partition("/")[0]
        if "@" in place and not url.startswith("ssh://"):
            section.problem("url", "must not carry a user name or password")
        if place.startswith("-") or not url.isprintable() or " " in url:
            section.problem("url", f"{url!r} holds an option, a space or a control character")
        return RepositorySource(url=url)
    if path is None:
        return None
    return RepositorySource(
        path=absolute_source(section, "path", path, folder), include_uncommitted=uncommitted
    )


def absolute_source(section: Section, key: str, path: str, folder: str | None) -> str:
    """Join a path on this machine to the folder it was written in."""
    if path.startswith("~"):
        section.problem(key, f"{path!r} starts with ~, which is not expanded; write it out")
    if folder is None:
        return path
    return posixpath.normpath(posixpath.join(folder, path))


def _variables(runtime: Section) -> dict[str, str]:
    values: dict[str, str] = {}
    for entry in runtime.sections("envVars"):
        name = entry.text("key", required=True)
        node = entry.node("value") if entry.has("value") else None
        value: str | None = None
        if node is not None and not isinstance(node.value, str):
            hint = "; put it in quotes" if isinstance(node.value, bool | int | float) else ""
            entry.problem("value", f"must be text, not {kind(node.value)}{hint}")
        elif node is not None and isinstance(node.value, str):
            value = node.value
        elif not entry.has("value") and not entry.has("fromSecret") and not entry.has("valueFrom"):
            entry.problem("value", "is missing")
        entry.asked.add("value")
        entry.finish({"fromSecret": _NO_SECRETS, "valueFrom": _NO_SECRETS})
        if name is None:
            continue
        if VARIABLE_NAME.fullmatch(name) is None:
            entry.problem("key", f"{name!r} is no name of an environment variable")
        elif name in values:
            entry.problem("key", f"{name} is set twice")
        elif value is not None:
            values[name] = value
    return values


def _tasks(runtime: Section) -> tuple[TemplateTask, ...]:
    tasks: list[TemplateTask] = []
    names: set[str] = set()
    later = dict.fromkeys(("POST_START", "PRE_START", "ON_START", "PRE_STOP"), _LATER_TASKS)
    for entry in runtime.sections("tasks"):
        name = entry.name("name", required=True)
        entry.choice("type", ("ON_CREATE",), later)
        directory = _working_directory(entry)
        policy = entry.choice("onFailure", tuple(OnFailure), {}) or OnFailure.ABORT
        run = entry.text("run", required=True)
        if entry.has("runAsRoot") and not entry.flag("runAsRoot", default=False):
            pass  # false is what happens anyway
        elif entry.has("runAsRoot"):
            entry.problem(
                "runAsRoot",
                "is not supported yet: with image host nothing can be installed as root; "
                "install it on this machine, or into the workspace user's home",
            )
        entry.finish()
        if name is not None and name in names:
            entry.problem("name", f"{name} is the name of two tasks")
        if name is None or run is None:
            continue
        names.add(name)
        tasks.append(
            TemplateTask(
                name=name, run=run, working_directory=directory, on_failure=OnFailure(policy)
            )
        )
    return tuple(tasks)


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


def _limits(section: Section) -> Limits:
    limits = Limits()
    cpu = _amount(section, "cpu", "millicores", least=10, most=1_024_000)
    memory = _amount(
        section, "memory", "megabytes", least=_LEAST_MEMORY_MEGABYTES, most=_MOST_MEGABYTES
    )
    storage = _amount(section, "storage", "megabytes", least=1, most=_MOST_MEGABYTES)
    processes = section.integer("processes", least=4, most=4_000_000)
    section.finish()
    if cpu is not None:
        limits = replace(limits, cpu_millicores=cpu)
    if memory is not None:
        limits = replace(limits, memory_bytes=memory * MEGABYTE)
    if storage is not None:
        limits = replace(limits, disk_bytes=storage * MEGABYTE)
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
