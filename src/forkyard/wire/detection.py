"""What a repository without a template is: language, package manager, preparation, test command.

Told from the names and texts of a few files at its root; nothing of it is executed. What is found
is a proposal: whoever uses it says so first, with the file that it was read from.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from forkyard.wire.jsonc import MOST_CHARACTERS

READ_FILES = (
    "Cargo.toml", "Gemfile", "Makefile", "build.gradle", "build.gradle.kts", "composer.json",
    "go.mod", "mix.exs", "package.json", "pom.xml", "pyproject.toml", "pytest.ini", "setup.cfg",
    "setup.py", "tox.ini",
)  # fmt: skip
"""The files whose text `detect` looks at; of everything else the name is enough."""

_JUNIT = '--junitxml="$REPORT"'
_NO_TEST = re.compile(r"no test specified", re.IGNORECASE)
_MAKE_TEST = re.compile(r"^(test|check)\s*:(?!=)", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Detected:
    """One reading of a repository."""

    language: str
    package_manager: str
    evidence: str
    """The file that says so."""
    setup: str | None = None
    """Shell command that brings the dependencies in; None where they are there, or none needed."""
    test: str | None = None
    """Shell command that runs the tests; it writes JUnit XML to $REPORT where it names that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """What lies at the root of a repository."""

    names: AbstractSet[str]
    """Of files and folders."""
    texts: Mapping[str, str]
    """Of those of `READ_FILES` that are there."""

    def first(self, *names: str) -> str | None:
        """Give the first of these that is there."""
        return next((name for name in names if name in self.names), None)


def detect(listing: Listing) -> tuple[Detected, ...]:
    """Say what a repository is, the most telling reading first.

    Args:
        listing: Its root.

    Returns:
        One reading per language found; a plain Makefile with tests only where nothing else is.
    """
    found = [one for reader in _READERS if (one := reader(listing)) is not None]
    if not any(one.test for one in found):
        found += _make(listing)
    # A language whose tests are known tells more than one that is only used for a tool.
    return tuple(sorted(found, key=lambda one: one.test is None))


def _python(listing: Listing) -> Detected | None:
    evidence = listing.first(
        "pyproject.toml", "setup.py", "setup.cfg", "requirements.txt", "tox.ini", "pytest.ini"
    )
    if evidence is None:
        return None
    manager, setup, prefix = _python_manager(listing)
    project = _toml(listing.texts.get("pyproject.toml", ""))
    mentions = "\n".join(
        listing.texts.get(name, "")
        for name in ("pyproject.toml", "pytest.ini", "tox.ini", "setup.cfg")
    )
    test: str | None = None
    if "pytest" in mentions or "conftest.py" in listing.names:
        test = f"{prefix}pytest -q {_JUNIT}"
    elif listing.first("tests", "test") is not None:
        test = f"{prefix}unittest discover"
    if "pytest.ini" in listing.names:
        evidence = "pytest.ini"
    elif isinstance(project.get("tool"), dict) and "pytest" in project["tool"]:  # type: ignore[operator]  # just looked
        evidence = "pyproject.toml"
    return Detected(
        language="Python", package_manager=manager, evidence=evidence, setup=setup, test=test
    )


def _python_manager(listing: Listing) -> tuple[str, str | None, str]:
    """Give the manager, what it does first, and what goes before a command."""
    environment = listing.first(".venv", "venv")
    for lock, manager, setup in (
        ("uv.lock", "uv", "uv sync --frozen"),
        ("poetry.lock", "poetry", "poetry install --no-interaction"),
        ("pdm.lock", "pdm", "pdm install"),
        ("Pipfile.lock", "pipenv", "pipenv sync --dev"),
    ):
        if lock in listing.names:
            if environment is not None:
                return manager, None, f"{environment}/bin/python -m "
            return manager, setup, f"{manager} run python -m "
    if environment is not None:
        return "pip", None, f"{environment}/bin/python -m "
    requirements = listing.first("requirements-dev.txt", "requirements.txt")
    if requirements is not None:
        setup = f"python3 -m venv .venv && .venv/bin/python -m pip install -r {requirements}"
        return "pip", setup, ".venv/bin/python -m "
    return "pip", None, "python3 -m "


def _node(listing: Listing) -> Detected | None:
    if "package.json" not in listing.names:
        return None
    manager, setup = "npm", "npm ci" if "package-lock.json" in listing.names else "npm install"
    for lock, other, command in (
        ("pnpm-lock.yaml", "pnpm", "pnpm install --frozen-lockfile"),
        ("yarn.lock", "yarn", "yarn install --frozen-lockfile"),
        ("bun.lock", "bun", "bun install --frozen-lockfile"),
        ("bun.lockb", "bun", "bun install --frozen-lockfile"),
    ):
        if lock in listing.names:
            manager, setup = other, command
            break
    package = _json(listing.texts.get("package.json", ""))
    needs = any(package.get(key) for key in ("dependencies", "devDependencies"))
    scripts = package.get("scripts")
    script = scripts.get("test") if isinstance(scripts, dict) else None
    has_test = isinstance(script, str) and script.strip() and not _NO_TEST.search(script)
    language = "TypeScript" if "tsconfig.json" in listing.names else "JavaScript"
    return Detected(
        language=language,
        package_manager=manager,
        evidence="package.json",
        setup=setup if needs and "node_modules" not in listing.names else None,
        test=("bun run test" if manager == "bun" else f"{manager} test") if has_test else None,
    )


def _go(listing: Listing) -> Detected | None:
    if "go.mod" not in listing.names:
        return None
    needs = "require" in listing.texts.get("go.mod", "") and "vendor" not in listing.names
    return Detected(
        language="Go",
        package_manager="go",
        evidence="go.mod",
        setup="go mod download" if needs else None,
        test="go test ./...",
    )


def _rust(listing: Listing) -> Detected | None:
    if "Cargo.toml" not in listing.names:
        return None
    needs = "dependencies" in _toml(listing.texts.get("Cargo.toml", ""))
    locked = " --locked" if "Cargo.lock" in listing.names else ""
    return Detected(
        language="Rust",
        package_manager="cargo",
        evidence="Cargo.toml",
        setup=f"cargo fetch{locked}" if needs and "vendor" not in listing.names else None,
        test="cargo test",
    )


def _java(listing: Listing) -> Detected | None:
    if "pom.xml" in listing.names:
        tool = "./mvnw" if "mvnw" in listing.names else "mvn"
        return Detected(
            language="Java",
            package_manager="maven",
            evidence="pom.xml",
            setup=f"{tool} -q -B dependency:go-offline",
            test=f"{tool} -q -B -o test",
        )
    evidence = listing.first("build.gradle.kts", "build.gradle")
    if evidence is None:
        return None
    tool = "./gradlew" if "gradlew" in listing.names else "gradle"
    return Detected(
        language="Kotlin" if evidence.endswith(".kts") else "Java",
        package_manager="gradle",
        evidence=evidence,
        setup=f"{tool} --quiet testClasses",
        test=f"{tool} --quiet --offline test",
    )


def _ruby(listing: Listing) -> Detected | None:
    if "Gemfile" not in listing.names:
        return None
    tests = {"spec": "bundle exec rspec", "test": "bundle exec rake test"}
    return Detected(
        language="Ruby",
        package_manager="bundler",
        evidence="Gemfile",
        setup="bundle install" if "vendor" not in listing.names else None,
        test=next((run for name, run in tests.items() if name in listing.names), None),
    )


def _php(listing: Listing) -> Detected | None:
    if "composer.json" not in listing.names:
        return None
    has_tests = listing.first("phpunit.xml", "phpunit.xml.dist") is not None
    return Detected(
        language="PHP",
        package_manager="composer",
        evidence="composer.json",
        setup=None if "vendor" in listing.names else "composer install --no-interaction",
        test='vendor/bin/phpunit --log-junit "$REPORT"' if has_tests else None,
    )


def _elixir(listing: Listing) -> Detected | None:
    if "mix.exs" not in listing.names:
        return None
    setup = None if "deps" in listing.names else "mix deps.get"
    return Detected(
        language="Elixir", package_manager="mix", evidence="mix.exs", setup=setup, test="mix test"
    )


def _make(listing: Listing) -> Iterator[Detected]:
    found = _MAKE_TEST.search(listing.texts.get("Makefile", ""))
    if found is not None:
        yield Detected(
            language="make",
            package_manager="make",
            evidence="Makefile",
            test=f"make {found.group(1)}",
        )


_READERS: tuple[Callable[[Listing], Detected | None], ...] = (
    _python, _node, _go, _rust, _java, _ruby, _php, _elixir,
)  # fmt: skip


def _toml(text: str) -> dict[str, object]:
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError):
        return {}  # a broken file proposes nothing


def _json(text: str) -> dict[str, object]:
    if len(text) > MOST_CHARACTERS:
        return {}
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
