"""The quick form's flags: where it starts, and what is wrong, all at once."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from forkyard.cli.quick import read_quick
from forkyard.cli.run import run
from forkyard.errors import ConfigError

OPTIONS: dict[str, object] = {
    "agents": ("one=true",), "attempts": 1, "checks": (), "no_check": False,
    "setup": (), "no_setup": False, "repository": None, "committed": False,
    "snapshot": None, "template": None, "values": (), "protected": (), "allow": (),
    "parallel": None, "timeout": None,
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
    (tmp_path / "objects").mkdir()
    (tmp_path / "HEAD").touch()
    with pytest.raises(ConfigError, match="is a bare repository"):
        read_quick("Fix", OPTIONS)
    assert read_quick("Fix", {**OPTIONS, "snapshot": "monday"}).snapshot == "monday"


def test_every_problem_is_told_at_once_when_flags_are_wrong() -> None:
    """Durations, numbers, agents and what excludes each other."""
    with pytest.raises(ConfigError) as told:
        read_quick(
            " ",
            {
                **OPTIONS, "agents": ("x y=true",), "attempts": 0, "checks": ("",),
                "snapshot": "a", "template": "b", "setup": ("make",), "no_setup": True,
                "protected": ("/etc",), "parallel": 100,
                "timeout": "0s", "deadline": "soon", "budget_usd": "$1", "budget_tokens": "5m",
            },
        )  # fmt: skip

    assert {one.key for one in told.value.problems} == {
        "PROMPT", "-a", "-n", "--check", "--template", "--setup", "--no-setup", "--protected",
        "--parallel", "--timeout", "--deadline", "--budget-usd", "--budget-tokens",
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


PYTEST = 'python3 -m pytest -q --junitxml="$REPORT"'


def test_the_repositorys_tests_judge_when_no_check_is_named(
    repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Found in its own files, and said with the way out of it."""
    (repository / "pytest.ini").write_text("[pytest]\n")

    assert read_quick("Fix", OPTIONS).checks == [PYTEST]
    assert "(Python, from pytest.ini); --check chooses another" in capsys.readouterr().err
    assert read_quick("Fix", {**OPTIONS, "checks": ("true",)}).checks == ["true"]
    assert read_quick("Fix", {**OPTIONS, "no_check": True}).checks == []
    assert read_quick("Fix", {**OPTIONS, "snapshot": "monday"}).checks == []


def test_it_says_that_nothing_judges_when_no_test_is_found(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """An unjudged run is nobody's wish by accident."""
    assert read_quick("Fix", OPTIONS).checks == []
    assert "candidates will not be judged" in capsys.readouterr().err


def test_missing_dependencies_are_brought_in_when_the_repository_says_how(
    repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Unless they lie there, or somebody knows better."""
    (repository / "package.json").write_text('{"dependencies": {"left": "1"}}')
    (repository / "package-lock.json").write_text("{}")

    assert read_quick("Fix", OPTIONS).setup == ["npm ci"]
    assert "`npm ci` (npm, from package.json), the network open" in capsys.readouterr().err
    assert read_quick("Fix", {**OPTIONS, "no_setup": True}).setup == []
    assert read_quick("Fix", {**OPTIONS, "setup": ("make deps",)}).setup == ["make deps"]

    (repository / "node_modules").mkdir()
    assert read_quick("Fix", OPTIONS).setup == []
    assert read_quick("Fix", {**OPTIONS, "committed": True}).setup == ["npm ci"]
