"""What a command line for a workspace means."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from forkyard.cli import live
from forkyard.client.results import ExecOutcome


@pytest.mark.parametrize(
    "line",
    [
        ["mine", "--root", "-c", "id"],
        ["--root", "mine", "-c", "id"],
        ["-c", "id", "mine", "--root"],
        ["--root", "-c", "id", "mine"],
    ],
)
def test_options_count_when_they_stand_before_and_after_the_workspace(line: list[str]) -> None:
    """None of them is taken for the command."""
    context = live.exec_.make_context("exec", line)

    assert context.params["argv"] == ("mine",)
    assert context.params["command"] == "id"
    assert context.params["as_root"] is True


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (["--root", "mine", "ls", "-c"], ("mine", "ls", "-c")),
        (["mine", "--root", "--", "-c"], ("mine", "-c")),
        (["--root", "mine", "--", "ls", "--json"], ("mine", "ls", "--json")),
        (["--root", "--", "mine", "-c"], ("mine", "-c")),
    ],
)
def test_what_follows_is_the_commands_when_it_has_begun(
    line: list[str], words: tuple[str, ...]
) -> None:
    """Also where it looks like an option of ours."""
    context = live.exec_.make_context("exec", line)

    assert context.params["argv"] == words
    assert context.params["command"] is None
    assert context.params["as_root"] is True


def test_an_unknown_option_is_refused_when_it_stands_before_the_workspace() -> None:
    """As it is where it stands behind."""
    assert "No such option" in CliRunner().invoke(live.exec_, ["--rot", "mine", "ls"]).output


def test_a_limit_that_struck_is_told_when_the_command_ended_well(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A shell hides that a child of it was killed."""
    ended = ExecOutcome(
        id="exec_1", stop_reason="exited", exit_code=0, elapsed_seconds=0.1, stdout=b"",
        stderr=b"", truncated=False, detail="the memory limit was reached",
    )  # fmt: skip

    assert live._status(ended) == 0
    assert capsys.readouterr().err == "The memory limit was reached.\n"
