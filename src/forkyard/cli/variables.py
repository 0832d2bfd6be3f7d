"""Values of a template's `vars` on the command line: ``--var NAME=VALUE``."""

from __future__ import annotations

from collections.abc import Sequence

from forkyard.errors import ConfigError, Problem


def read_vars(given: Sequence[str]) -> dict[str, str]:
    """Read the flags; of one name given twice, neither is guessed at.

    Raises:
        ConfigError: With every problem at once.
    """
    values: dict[str, str] = {}
    problems: list[Problem] = []
    for one in given:
        name, equals, value = one.partition("=")
        if not equals or not name:
            problems.append(Problem(key="--var", message=f"{one[:60]!r} is not NAME=VALUE"))
        elif name in values:
            problems.append(Problem(key="--var", message=f"{name} is given twice"))
        values[name] = value
    if problems:
        raise ConfigError(
            f"cannot read the flags: {problems[0]}",
            hint="Write --var NAME=VALUE for each of the template's vars.",
            problems=tuple(problems),
        )
    return values
