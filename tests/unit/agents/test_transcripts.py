"""What real agents printed, recorded against a scripted model, and what we read of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from forkyard.agents.limitations import known_limitations
from forkyard.agents.registry import driver_named
from forkyard.agents.trajectory import Message, ToolCall, Trajectory
from forkyard.model.budget import TokenCounts

TRANSCRIPTS = Path(__file__).parent / "transcripts"
FIXED = "Fixed: add() adds.\n\nKnown limitations: only integers were tried."


def read(driver: str, name: str) -> Trajectory:
    """Read one transcript."""
    with (TRANSCRIPTS / f"{name}.jsonl").open(encoding="utf-8") as lines:
        found = driver_named(driver).trajectory(lines)
    assert found is not None
    return found


def calls_of(found: Trajectory) -> list[ToolCall]:
    """List the uses of tools."""
    return [step for step in found.steps if isinstance(step, ToolCall)]


@pytest.mark.parametrize(
    ("driver", "tools", "status", "claims"),
    [
        ("claude-code", ["Read", "Edit", "Bash", "Bash"], 3, True),
        (
            "codex",
            ["command_execution", "file_change", "command_execution", "command_execution"],
            3,
            True,
        ),
        ("opencode", ["read", "edit", "bash", "bash"], 3, None),
        ("gemini", ["read_file", "replace", "run_shell_command", "run_shell_command"], None, True),
        ("mini-swe-agent", ["bash", "bash", "bash", "bash", "bash"], None, True),
    ],
)
def test_a_run_is_read_when_it_went_well(
    driver: str, tools: list[str], status: int | None, claims: bool | None
) -> None:
    """Words, tools, exit status and the final note come out the same whoever printed them."""
    found = read(driver, driver)

    assert tools == [call.tool for call in calls_of(found)]
    assert status == calls_of(found)[-1].exit_status
    assert found.final_text == FIXED
    assert known_limitations(found) == "only integers were tried."
    assert claims is found.claimed_success
    assert found.api_error is None
    assert found.skipped_lines == 0
    assert any(
        isinstance(step, Message) and step.role == "assistant" and step.text == "I will look."
        for step in found.steps
    )


@pytest.mark.parametrize(
    ("driver", "tokens"),
    [
        ("claude-code", TokenCounts(input=54, cache_read=3741, cache_write=930, output=320)),
        (
            "codex",
            TokenCounts(input=54, cache_read=3741, cache_write=930, output=320, reasoning=10),
        ),
        # The title is asked for beside, and told nowhere.
        ("opencode", TokenCounts(input=54, cache_read=3741, cache_write=930, output=320)),
        # Thoughts are told nowhere.
        ("gemini", TokenCounts(input=984, cache_read=3741, output=310)),
        ("mini-swe-agent", TokenCounts(input=984, cache_read=3741, output=320, reasoning=10)),
    ],
)
def test_tokens_are_what_the_agent_claims_when_it_counts_them(
    driver: str, tokens: TokenCounts
) -> None:
    """Each token is counted once, though the APIs count cached ones differently."""
    assert tokens == read(driver, driver).claimed_tokens


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("claude-code-402", "402 budget of this attempt is exhausted"),
        ("claude-code-429", "Request rejected (429)"),
        ("codex-402", "402 Payment Required: budget of this attempt is exhausted"),
        ("codex-drop", "stream disconnected"),
        ("opencode-400", "400 budget of this attempt is exhausted"),
        ("gemini-400", "budget of this attempt is exhausted"),
        ("mini-swe-agent-400", "budget of this attempt is exhausted"),
    ],
)
def test_an_error_of_the_api_is_found_when_it_was_the_last_word(name: str, words: str) -> None:
    """No agent is believed when it says `success` beside an error."""
    found = read(name.rpartition("-")[0], name)

    assert found.api_error is not None
    assert words in found.api_error
    assert found.claimed_success is False
    assert known_limitations(found) is None


@pytest.mark.parametrize("driver", ["codex", "opencode", "mini-swe-agent"])
def test_a_failed_command_is_an_error_when_its_status_is_told(driver: str) -> None:
    """Exit status 3 of the scripted command is found."""
    failed = [call for call in calls_of(read(driver, driver)) if call.exit_status == 3]

    assert [call.is_error for call in failed] == [True]
    assert "oops" in failed[0].output


@pytest.mark.parametrize("driver", ["opencode", "gemini", "mini-swe-agent"])
def test_a_tool_has_a_duration_when_the_transcript_tells_times(driver: str) -> None:
    """Milliseconds are there for every tool."""
    assert all(call.milliseconds is not None for call in calls_of(read(driver, driver)))
