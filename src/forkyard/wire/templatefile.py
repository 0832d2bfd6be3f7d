"""The template file: the first seed's ``spec:`` as one TemplateSpec.

Images and repositories: `template_sources`; environment, tasks, limits and network:
`template_runtime`; values that a build or run may replace: `template_vars`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from forkyard.errors import ConfigError
from forkyard.model.workspace import Limits, NetworkPlan, TemplateSpec, TemplateTask
from forkyard.wire import yaml
from forkyard.wire.fields import Problems, Section, root_section
from forkyard.wire.template_runtime import (
    MEGABYTE,
    is_inside_path,
    read_limits,
    read_network,
    read_tasks,
    read_variables,
)
from forkyard.wire.template_sources import (
    IMAGE_HOST,
    absolute_source,
    read_image,
    read_repositories,
)
from forkyard.wire.template_vars import KEY as VARS
from forkyard.wire.template_vars import as_text, put_in, read_vars

__all__ = ("IMAGE_HOST", "MEGABYTE", "absolute_source", "is_inside_path", "parse_template")


def parse_template(
    text: str,
    file: str | None = None,
    *,
    folder: str | None = None,
    values: Mapping[str, str] | None = None,
) -> TemplateSpec:
    """Read a template file.

    Args:
        text: The whole file.
        file: Its name, for messages.
        folder: Where a relative path starts; without it the path stays as written.
        values: Of the file's `vars`, in place of their defaults.

    Returns:
        The recipe; where the file has `vars`, with its text, to be read again with other values.

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
            spec = _spec(below, folder, values or {})
        root.finish()
    problems.raise_if_any()
    if spec.parameters:
        spec = replace(spec, source_text=text, source_file=file or "", source_folder=folder or "")
    return spec


def with_values(spec: TemplateSpec, values: Mapping[str, str]) -> TemplateSpec:
    """Give a recipe with other values for its `vars`.

    Raises:
        ConfigError: The template has no such `vars`, or what comes of them is wrong.
    """
    if not values:
        return spec
    if not spec.source_text:
        problems = Problems(spec.source_file or None)
        for name in values:
            problems.add(f"{name!r} is no variable: this template has no vars", path=(VARS, name))
        problems.raise_if_any()
    try:
        return parse_template(
            spec.source_text,
            spec.source_file or None,
            folder=spec.source_folder or None,
            values=values,
        )
    except ConfigError as error:
        given = {f"{VARS}.{name}" for name in values}
        if not all(problem.key in given for problem in error.problems):
            raise
        told = "; ".join(f"{problem.key}: {problem.message}" for problem in error.problems)
        raise ConfigError(
            f"cannot give the template these values: {told}",
            hint="Correct the values, such as `--var NAME=VALUE`.",
            problems=tuple(replace(problem, file=None, line=None) for problem in error.problems),
        ) from error


def _spec(section: Section, folder: str | None, given: Mapping[str, str]) -> TemplateSpec:
    values = read_vars(section, given)
    section = Section(
        {
            key: node if key == VARS else put_in(node, values, section.problems, (key,))
            for key, node in section.values.items()
        },
        section.path,
        section.line,
        section.problems,
    )
    section.asked.add(VARS)
    image, image_source = read_image(section, folder)
    repository, others = read_repositories(section, folder)
    runtime = section.section("runtime")
    variables: dict[str, str] = {}
    tasks: tuple[TemplateTask, ...] = ()
    if runtime is not None:
        variables = read_variables(runtime)
        tasks = read_tasks(runtime, is_host=image_source is None and not _has_image(section))
        runtime.finish()
    limit, network = section.section("limit"), section.section("network")
    limits = Limits() if limit is None else read_limits(limit)
    plan = NetworkPlan() if network is None else read_network(network)
    section.finish()
    return TemplateSpec(
        image=image,
        image_source=image_source,
        repository=repository,
        additional_repositories=others,
        variables=variables,
        tasks=tasks,
        limits=limits,
        network=plan,
        parameters={name: as_text(value) for name, value in values.items()},
    )


def _has_image(section: Section) -> bool:
    """Say whether an image of its own is meant, though it may be written wrongly."""
    return section.has("image") and isinstance(section.values["image"].value, dict)
