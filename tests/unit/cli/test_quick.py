"""The quick form's flags: where it starts, and what is wrong, all at once."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from forkyard.cli.quick import read_quick
from forkyard.cli.run import run
from forkyard.errors import ConfigError

OPTIONS: dict[str, object] = {
    "agents": ("one=true",), "attempts": 1, "checks": (), "repository": None, "committed": False,
    "snapshot": None, "template": None, "protected": (), "parallel": None, "timeout": None,
    "deadline": None, "budget_usd": None, "budget_tokens": None,
}  # fmt: skip


@pytest.fixture(autouse=True)
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stand in a folder of a repository."""
    (tmp_path / "repo" / ".git").mkdir(parents=True)
    (tmp_path / "repo" / "deep" / "er").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "repo" / "deep" / "er")
    return tmp_path / "repo"


def test_it_starts_from_the_repository_around_when_no_folder_is_named(repository: Path) -> None:
    """The whole of it, from any folder inside."""
    assert read_quick("Fix", OPTIONS).repository == str(repository)


def test_it_starts_from_the_named_folder_when_one_is_named() -> None:
    """As it is named."""
    assert read_quick("Fix", {**OPTIONS, "repository": ".."}).repository == ".."


def test_it_is_refused_when_there_is_no_repository_around(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A home is never taken by accident; a snapshot needs no repository."""
    monkeypatch.chdir(tmp_path)

    with pytest.raises(ConfigError, match="lies in no git repository"):
        read_quick("Fix", OPTIONS)
    assert read_quick("Fix", {**OPTIONS, "snapshot": "monday"}).snapshot == "monday"


def test_every_problem_is_told_at_once_when_flags_are_wrong() -> None:
    """Durations, numbers, agents and what excludes each other."""
    with pytest.raises(ConfigError) as told:
        read_quick(
            " ",
            {
                **OPTIONS, "agents": ("x y=true",), "attempts": 0, "checks": ("",),
                "snapshot": "a", "template": "b", "protected": ("/etc",), "parallel": 100,
                "timeout": "0s", "deadline": "soon", "budget_usd": "$1", "budget_tokens": "5m",
            },
        )  # fmt: skip

    assert {one.key for one in told.value.problems} == {
        "PROMPT", "-a", "-n", "--check", "--template", "--protected", "--parallel", "--timeout",
        "--deadline", "--budget-usd", "--budget-tokens",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["task.yaml", "-n", "1", "--check", "x"], "cannot run task.yaml with -n, --check"),
        (["task.yaml", "-a", "x=true"], "-a: has no meaning with task file task.yaml"),
        (["x" * 5000], r"cannot run 'x{60}\.\.\.': no such task file"),
    ],
)
def test_nothing_is_ignored_when_forms_are_mixed(arguments: list[str], reason: str) -> None:
    """A task file beside flags of the quick form is refused before a server is asked."""
    Path("task.yaml").touch()

    with pytest.raises(ConfigError, match=reason):
        run.main(arguments, standalone_mode=False)


def test_the_flags_are_those_of_the_command() -> None:
    """No option can be forgotten when one is added."""
    names = {one.name for one in run.params if isinstance(one, click.Option)}
    assert names - {"detach", "quiet", "as_json"} == set(OPTIONS)
