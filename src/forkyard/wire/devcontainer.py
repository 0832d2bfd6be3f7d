"""A devcontainer.json as a template file: what maps, what does not, said key by key.

The keys are those of the Development Container Specification. Nothing of the host goes in:
`initializeCommand` would run outside of every sandbox and never does, and a value that asks for
the host's environment is left out.
"""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from forkyard.errors import ConfigError, Problem
from forkyard.model.workspace import REPOSITORY, TaskType
from forkyard.wire import jsonc
from forkyard.wire.fields import VARIABLE_NAME, kind

PLACES = (".devcontainer/devcontainer.json", ".devcontainer.json")
"""Below a repository, in the order in which they are looked for."""

_LOCAL = re.compile(r"\$\{local(?:Env:[^}]*|WorkspaceFolder(?:Basename)?)\}")
_INSIDE = re.compile(r"\$\{containerEnv:([A-Za-z_][A-Za-z0-9_]*)(?::([^}]*))?\}")
_FOLDER = re.compile(r"\$\{containerWorkspaceFolder(Basename)?\}")
_ROOT_USERS = ("root", "0")
_MOST_CPUS = 1_000_000


class Fate(StrEnum):
    """What became of one key."""

    MAPPED = "mapped"
    PARTLY = "partly"
    IGNORED = "ignored"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyReport:
    """One key of the file: what became of it, and what a person should know."""

    key: str
    fate: Fate
    note: str


@dataclass(slots=True, kw_only=True)
class Imported:
    """A template's document and the report about every key of the file."""

    name: str | None = None
    spec: dict[str, object] = field(default_factory=dict)
    report: list[KeyReport] = field(default_factory=list)

    @property
    def document(self) -> dict[str, object]:
        """The template file's content, for a YAML writer."""
        return {"spec": self.spec}


def import_devcontainer(
    text: str,
    file: str,
    *,
    folder: str,
    root: str,
    repository: str | None = None,
    real: Callable[[str], str] = posixpath.normpath,
) -> Imported:
    """Turn a devcontainer.json into a template.

    Args:
        text: The whole file.
        file: Its name, for messages.
        folder: Its absolute folder, where paths of a build start.
        root: Absolute path of the folder whose contents a build may have: whoever wrote the file
            may not be who imports it, and its build steps see all of the context.
        repository: Absolute path of the repository to take along, uncommitted work included.
        real: Gives a path as it is without links.

    Returns:
        The template and one line about each key, in the order of the file.

    Raises:
        ConfigError: It is no JSON with comments, or no mapping.
    """
    try:
        document = jsonc.load(text)
    except ValueError as error:
        raise _unreadable(file, str(error)) from error
    if not isinstance(document, dict):
        raise _unreadable(file, f"must be a mapping of keys, not {kind(document)}")
    made = _Import(document, folder, real(root), real)
    made.run()
    if repository is not None:
        made.spec["repository"] = {"path": repository, "include_uncommitted": True}
    ordered = {key: made.spec[key] for key in _ORDER if key in made.spec}
    return Imported(name=made.name, spec=ordered, report=made.report)


_ORDER = ("image", "repository", "runtime", "limit")


def _unreadable(file: str, reason: str) -> ConfigError:
    return ConfigError(
        f"cannot read {file}: {reason}",
        hint="Correct it, or write a template file by hand (docs/template-file.md).",
        problems=(Problem(message=reason, file=file),),
    )


class _Import:
    """One document on its way."""

    def __init__(
        self,
        document: dict[str, object],
        folder: str,
        root: str,
        real: Callable[[str], str],
    ) -> None:
        self._document = document
        self._folder, self._root, self._real = folder, root, real
        self._variables: dict[str, str] = {}
        self._tasks: list[dict[str, object]] = []
        self.spec: dict[str, object] = {"image": "host"}
        self.name: str | None = None
        self.report: list[KeyReport] = []
        self._as_root = document.get("remoteUser", document.get("containerUser")) in _ROOT_USERS

    def run(self) -> None:
        for key, value in self._document.items():
            handler = _HANDLERS.get(key)
            if handler is not None:
                handler(self, key, value)
            elif key in _IGNORED:
                self.say(key, Fate.IGNORED, _IGNORED[key])
            else:
                self.say(key, Fate.IGNORED, "is no key that Forkyard knows")
        if self.spec["image"] == "host" and self._as_root:
            for task in self._tasks:
                task.pop("runAsRoot", None)
        runtime: dict[str, object] = {}
        if self._variables:
            runtime["envVars"] = [{"key": k, "value": v} for k, v in self._variables.items()]
        if self._tasks:
            # The order of the life cycle, whatever the order of the file.
            runtime["tasks"] = sorted(self._tasks, key=_place)
        if runtime:
            self.spec["runtime"] = runtime

    def say(self, key: str, fate: Fate, note: str) -> None:
        self.report.append(KeyReport(key=key, fate=fate, note=note))

    def wrong(self, key: str, value: object, wanted: str) -> None:
        self.say(key, Fate.IGNORED, f"must be {wanted}, not {kind(value)}")

    # -- where it runs -----------------------------------------------------------------------------

    def take_name(self, key: str, value: object) -> None:
        if not isinstance(value, str):
            self.wrong(key, value, "text")
            return
        name = re.sub(r"[^A-Za-z0-9._-]+", "-", value).strip("-._").lower()[:63]
        self.name = name or None
        self.say(key, Fate.MAPPED, f"the template's name: {name}" if name else "has no letter")

    def image(self, key: str, value: object) -> None:
        if not isinstance(value, str) or not value.strip():
            self.wrong(key, value, "the name of an image")
        elif _LOCAL.search(value):
            self.say(key, Fate.IGNORED, f"{value!r} depends on the host")
        else:
            self.spec["image"] = {"registry": {"url": value}}
            self.say(key, Fate.MAPPED, f"image.registry.url: {value}")

    def build(self, key: str, value: object) -> None:
        if not isinstance(value, dict):
            self.wrong(key, value, "a mapping")
            return
        dockerfile = value.get("dockerfile", value.get("dockerFile"))
        left = [one for one in value if one not in ("dockerfile", "dockerFile", "context")]
        self._build(key, dockerfile, value.get("context", "."), left)

    def docker_file(self, key: str, value: object) -> None:
        self._build(key, value, self._document.get("context", "."), [])

    def _build(self, key: str, dockerfile: object, context: object, left: list[str]) -> None:
        if not isinstance(dockerfile, str) or not isinstance(context, str):
            self.say(key, Fate.IGNORED, "names no Dockerfile and context as text")
            return
        places = {
            "context": posixpath.normpath(posixpath.join(self._folder, context)),
            "containerfile": posixpath.normpath(posixpath.join(self._folder, dockerfile)),
        }
        for what, place in places.items():
            if "\0" in place or not self._is_inside(place):
                self.say(key, Fate.IGNORED, f"its {what} {place} lies outside of {self._root}")
                return
        self.spec["image"] = {"build": places}
        if left:
            note = f"image.build, but without {', '.join(sorted(left))}"
            self.say(key, Fate.PARTLY, note)
        else:
            self.say(key, Fate.MAPPED, "image.build")

    def _is_inside(self, place: str) -> bool:
        return posixpath.commonpath((self._real(place), self._root)) == self._root

    def context(self, key: str, value: object) -> None:
        if isinstance(value, str) and "dockerFile" in self._document:
            self.say(key, Fate.MAPPED, "image.build.context")
        else:
            self.say(key, Fate.IGNORED, "has a meaning beside dockerFile only")

    # -- what commands start with ------------------------------------------------------------------

    def environment(self, key: str, value: object) -> None:
        if not isinstance(value, dict):
            self.wrong(key, value, "a mapping")
            return
        left: list[str] = []
        for name, content in value.items():
            if VARIABLE_NAME.fullmatch(name) is None or not isinstance(content, str):
                left.append(f"{name} (must be text)")
            elif _LOCAL.search(content):
                left.append(f"{name} (asks for the host's environment or folders)")
            elif _INSIDE.search(content):
                left.append(f"{name} (depends on another variable)")
            else:
                self._variables[name] = _with_folder(content)
        self._tell_parts(key, "runtime.envVars", len(value) - len(left), left)

    def _tell_parts(self, key: str, target: str, taken: int, left: list[str]) -> None:
        if not left:
            self.say(key, Fate.MAPPED, target)
        else:
            fate = Fate.PARTLY if taken else Fate.IGNORED
            self.say(key, fate, f"{target}, but without {', '.join(left)}")

    def user(self, key: str, value: object) -> None:
        has_image = any(one in self._document for one in ("image", "build", "dockerFile"))
        if value in _ROOT_USERS and has_image:
            self.say(key, Fate.PARTLY, "tasks run as root of the workspace; agents never do")
        else:
            self.say(key, Fate.IGNORED, "commands run as the user `workspace`")

    # -- tasks -------------------------------------------------------------------------------------

    def command(self, key: str, value: object) -> None:
        when = TaskType.POST_START if key == "postStartCommand" else TaskType.ON_CREATE
        base = re.sub(r"(?<!^)(?=[A-Z])", "-", key.removesuffix("Command")).lower()
        lines, wrong = dict(_commands(value)), False
        for name, line in lines.items():
            if line is None or _LOCAL.search(line):
                wrong = True
                continue
            task: dict[str, object] = {
                "name": f"{base}-{name}" if name else base,
                "type": when.value,
                "workingDir": REPOSITORY,
                "run": _with_folder(_INSIDE.sub(_shell_variable, line)),
            }
            if self._as_root:
                task["runAsRoot"] = True
            self._tasks.append(task)
        what = f"{when.value} task" + ("s, one after the other" if len(lines) > 1 else "")
        if not wrong:
            self.say(key, Fate.MAPPED, what)
        elif any(line is not None and not _LOCAL.search(line) for line in lines.values()):
            self.say(key, Fate.PARTLY, f"{what}, but without those that depend on the host")
        else:
            self.say(key, Fate.IGNORED, "depends on the host, or is no command")

    # -- limits ------------------------------------------------------------------------------------

    def requirements(self, key: str, value: object) -> None:
        if not isinstance(value, dict):
            self.wrong(key, value, "a mapping")
            return
        limit: dict[str, object] = {}
        left: list[str] = []
        for name, content in value.items():
            amount = _amount(name, content)
            if amount is None:
                left.append(name)
            else:
                limit.update(amount)
        if limit:
            self.spec["limit"] = limit
        self._tell_parts(key, "limit", len(limit), left)


def _place(task: Mapping[str, object]) -> int:
    name = str(task["name"])
    return next(place for place, first in enumerate(_LIFE) if name.startswith(first))


_LIFE = ("on-create", "update-content", "post-create", "post-start")


def _commands(value: object) -> Iterator[tuple[str, str | None]]:
    """Give each command of a life cycle key by name ("" for the only one); None: it is none."""
    if isinstance(value, dict):
        for name, one in value.items():
            yield re.sub(r"[^A-Za-z0-9._-]+", "-", name)[:40] or "task", _line(one)
    else:
        yield "", _line(value)


def _line(value: object) -> str | None:
    if isinstance(value, str) and value.strip():
        return value
    if isinstance(value, list) and value and all(isinstance(one, str) for one in value):
        return shlex.join(value)
    return None


def _shell_variable(found: re.Match[str]) -> str:
    name, default = found.groups()
    return f"${{{name}}}" if default is None else f"${{{name}:-{default}}}"


def _with_folder(text: str) -> str:
    base = posixpath.basename(REPOSITORY)
    return _FOLDER.sub(lambda found: base if found.group(1) else REPOSITORY, text)


def _amount(name: str, value: object) -> dict[str, object] | None:
    if name == "cpus" and isinstance(value, int | float) and not isinstance(value, bool):
        return {"cpu": {"millicores": int(value * 1000)}} if 0 < value <= _MOST_CPUS else None
    if name in ("memory", "storage") and isinstance(value, str):
        found = re.fullmatch(r"\s*([0-9]{1,18})\s*(kb|mb|gb|tb)?\s*", value, re.IGNORECASE)
        if found is not None:
            power = {"kb": 1, "mb": 2, "gb": 3, "tb": 4}[(found.group(2) or "mb").lower()]
            size = int(found.group(1)) * 1024**power if found.group(2) else int(found.group(1))
            return {name: {"megabytes": max(1, size // 1024**2)}}
    return None


_HANDLERS: dict[str, Callable[[_Import, str, object], None]] = {
    "name": _Import.take_name,
    "image": _Import.image,
    "build": _Import.build,
    "dockerFile": _Import.docker_file,
    "context": _Import.context,
    "containerEnv": _Import.environment,
    "remoteEnv": _Import.environment,
    "containerUser": _Import.user,
    "remoteUser": _Import.user,
    "onCreateCommand": _Import.command,
    "updateContentCommand": _Import.command,
    "postCreateCommand": _Import.command,
    "postStartCommand": _Import.command,
    "hostRequirements": _Import.requirements,
}

_IGNORED = {
    "$schema": "says what the file is",
    "initializeCommand": "would run on this machine, outside of every sandbox: it never does",
    "postAttachCommand": "nothing attaches; run it yourself with `forkyard workspace exec`",
    "waitFor": "a workspace is ready when all its ON_CREATE tasks have ended",
    "dockerComposeFile": "services of a compose file are not started; the image is `host`",
    "service": "belongs to dockerComposeFile",
    "runServices": "belongs to dockerComposeFile",
    "features": "are not installed; write what they install as an ON_CREATE task",
    "overrideFeatureInstallOrder": "belongs to features",
    "workspaceFolder": f"the repository is at {REPOSITORY} in every workspace",
    "workspaceMount": "the repository is copied into the workspace, never mounted",
    "mounts": "nothing of this machine is mounted into a workspace",
    "runArgs": "are for another engine; limits and networks are set in the template",
    "init": "there always is one",
    "privileged": "no workspace is privileged",
    "capAdd": "no capability is added",
    "securityOpt": "the sandbox's confinement is not loosened",
    "overrideCommand": "the image's own command never runs",
    "shutdownAction": "a workspace is stopped by `forkyard workspace stop`",
    "updateRemoteUserUID": "workspaces have ids of their own",
    "userEnvProbe": "commands start with the template's variables alone",
    "forwardPorts": "forward them with `forkyard workspace forward`",
    "appPort": "forward it with `forkyard workspace forward`",
    "portsAttributes": "belongs to forwardPorts",
    "otherPortsAttributes": "belongs to forwardPorts",
    "customizations": "are for editors",
    "secrets": "set them with `forkyard secret set`, and name them at the tasks that need them",
    "extensions": "are for an editor",
    "settings": "are for an editor",
}
