"""What a repository is, told from names and texts at its root."""

from __future__ import annotations

import pytest

from forkyard.wire.detection import Listing, detect

VENV = "python3 -m venv .venv && .venv/bin/python -m pip install -r requirements.txt"
JUNIT = '--junitxml="$REPORT"'


def read(names: str, **texts: str) -> list[tuple[str, str, str | None, str | None]]:
    """Detect: names separated by spaces, texts by name with `_` for the dot."""
    contents = {name.replace("_", "."): text for name, text in texts.items()}
    found = detect(Listing(names={*names.split(), *contents}, texts=contents))
    return [(one.language, one.package_manager, one.setup, one.test) for one in found]


@pytest.mark.parametrize(
    ("names", "texts", "wanted"),
    [
        ("tests", {"pyproject_toml": "[tool.pytest.ini_options]\n"},
         ("Python", "pip", None, f"python3 -m pytest -q {JUNIT}")),
        ("setup.py tests", {},
         ("Python", "pip", None, "python3 -m unittest discover")),
        ("requirements.txt conftest.py", {},
         ("Python", "pip", VENV, f".venv/bin/python -m pytest -q {JUNIT}")),
        ("uv.lock conftest.py", {"pyproject_toml": ""},
         ("Python", "uv", "uv sync --frozen", f"uv run python -m pytest -q {JUNIT}")),
        ("uv.lock .venv conftest.py", {"pyproject_toml": ""},
         ("Python", "uv", None, f".venv/bin/python -m pytest -q {JUNIT}")),
        ("", {"package_json": '{"scripts": {"test": "node --test"}}'},
         ("JavaScript", "npm", None, "npm test")),
        ("pnpm-lock.yaml tsconfig.json",
         {"package_json": '{"scripts": {"test": "vitest"}, "devDependencies": {"vitest": "3"}}'},
         ("TypeScript", "pnpm", "pnpm install --frozen-lockfile", "pnpm test")),
        ("", {"package_json": '{"scripts": {"test": "echo \\"Error: no test specified\\""}}'},
         ("JavaScript", "npm", None, None)),
        ("", {"go_mod": "module x\nrequire y v1.0.0\n"},
         ("Go", "go", "go mod download", "go test ./...")),
        ("", {"go_mod": "module x\n"}, ("Go", "go", None, "go test ./...")),
        ("Cargo.lock", {"Cargo_toml": "[dependencies]\n"},
         ("Rust", "cargo", "cargo fetch --locked", "cargo test")),
        ("pom.xml mvnw", {},
         ("Java", "maven", "./mvnw -q -B dependency:go-offline", "./mvnw -q -B -o test")),
        ("build.gradle.kts", {},
         ("Kotlin", "gradle", "gradle --quiet testClasses", "gradle --quiet --offline test")),
        ("Gemfile spec", {}, ("Ruby", "bundler", "bundle install", "bundle exec rspec")),
        ("phpunit.xml vendor composer.json", {},
         ("PHP", "composer", None, 'vendor/bin/phpunit --log-junit "$REPORT"')),
        ("mix.exs", {}, ("Elixir", "mix", "mix deps.get", "mix test")),
        ("", {"Makefile": "all:\n\ncheck: all\n"}, ("make", "make", None, "make check")),
    ],
)  # fmt: skip
def test_a_repository_is_read_when_its_files_say_what_it_is(
    names: str, texts: dict[str, str], wanted: tuple[str, str, str | None, str | None]
) -> None:
    """Language, package manager, preparation, tests."""
    assert read(names, **texts) == [wanted]


def test_the_reading_with_tests_comes_first_when_there_are_several() -> None:
    """A package.json that only formats is not what the product is."""
    found = read("", package_json='{"devDependencies": {"prettier": "3"}}', go_mod="module x\n")
    assert [one[0] for one in found] == ["Go", "JavaScript"]


def test_nothing_is_proposed_when_nothing_is_known_or_files_are_broken() -> None:
    """A broken file is nobody's tests."""
    assert read("README.md src") == []
    assert read("", package_json="{", Makefile="test := 1\n")[0][3] is None
    assert read("", Cargo_toml="= broken")[0][2] is None
