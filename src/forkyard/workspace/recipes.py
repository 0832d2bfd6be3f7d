"""What a build asks of a recipe before it begins: its secrets, its digest, what is said of it."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import asdict, replace

from forkyard.errors import ConfigError, Problem
from forkyard.model.workspace import NetworkPolicy, TaskType, TemplateSpec

_NETWORK_WORDS = {
    NetworkPolicy.OPEN: (
        "network: open while the tasks run: the internet can be reached; this machine and private,"
        " link-local and metadata addresses cannot"
    ),
    NetworkPolicy.NONE: "network: none while the tasks run",
}


def recipe_digest(spec: TemplateSpec) -> str:
    """Give a digest of what a build would do; of `vars` only what they put in counts."""
    bare = replace(spec, parameters={}, source_text="", source_file="", source_folder="")
    return hashlib.sha256(json.dumps(asdict(bare), sort_keys=True).encode()).hexdigest()


def secret_names(spec: TemplateSpec) -> dict[str, str]:
    """Give each secret that a build needs, with the key of the template file that names it."""
    found: dict[str, str] = {}
    if spec.image_source is not None and spec.image_source.credentials is not None:
        found[spec.image_source.credentials.secret] = "image.registry.authentication"
    if spec.repository is not None and spec.repository.credentials is not None:
        found.setdefault(spec.repository.credentials.secret, "repository.authentication")
    for number, repository in enumerate(spec.additional_repositories):
        if repository.credentials is not None:
            key = f"additionalRepositories.{number}.authentication"
            found.setdefault(repository.credentials.secret, key)
    for task in spec.tasks:
        for name in task.secrets.values():
            found.setdefault(name, f"runtime.tasks.{task.name}.secrets")
    return found


def refuse_missing_secrets(
    template: str, spec: TemplateSpec, secret: Callable[[str], str | None]
) -> None:
    """Tell every secret that a build would miss, before it begins.

    Raises:
        ConfigError: At least one is not set.
    """
    missing = {name: key for name, key in secret_names(spec).items() if secret(name) is None}
    if not missing:
        return
    names = ", ".join(sorted(missing))
    commands = ", ".join(f"`forkyard secret set {name}`" for name in sorted(missing))
    raise ConfigError(
        f"cannot build template {template}: secrets are not set: {names}"
        if len(missing) > 1
        else f"cannot build template {template}: secret {names} is not set",
        hint=f"Set what is missing: {commands}.",
        problems=tuple(
            Problem(message=f"secret {name} is not set", key=f"spec.{key}")
            for name, key in missing.items()
        ),
    )


def notes(spec: TemplateSpec) -> tuple[str, ...]:
    """Say what a person should know of a recipe on this machine."""
    found: list[str] = []
    cores = len(os.sched_getaffinity(0))
    asked = spec.limits.cpu_millicores
    if asked is not None and asked > cores * 1000:
        found.append(
            f"limit.cpu is {asked / 1000:g} cores and this machine has {cores}: accepted, and a"
            f" fork gets {cores} at most"
        )
    return tuple(found)


def network_words(spec: TemplateSpec) -> str:
    """Say what the tasks of a build can reach."""
    policy = spec.network.build
    if policy is NetworkPolicy.ALLOWLIST:
        return f"network: allowlist while the tasks run: {', '.join(spec.network.allow)}"
    return _NETWORK_WORDS[policy]


def has_build_tasks(spec: TemplateSpec) -> bool:
    """Say whether anything runs while a template is built."""
    return any(task.type is TaskType.ON_CREATE for task in spec.tasks)
