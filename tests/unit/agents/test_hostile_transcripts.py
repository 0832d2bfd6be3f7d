"""Transcripts by somebody who means harm: bounded, counted, never an error."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forkyard.agents import transcript as read
from forkyard.agents.limitations import LONGEST, known_limitations
from forkyard.agents.registry import driver_named
from forkyard.agents.trajectory import Message, Trajectory

DRIVERS = ("claude-code", "codex", "opencode", "gemini", "mini-swe-agent")

NASTY = (
    "not json\n",
    "\n",
    "[]\n",
    "null\n",
    "1e999\n",
    '{"type": null}\n',
    '{"type": "assistant", "message": {"content": "text"}}\n',
    '{"type": "assistant", "message": {"content": [1, null, {"type": "text", "text": 5}]}}\n',
    '{"type": "assistant", "message": {"content": [{"type": "tool_use", "id": [], "name": {}}]}}\n',
    '{"type": "result", "usage": {"input_tokens": -5, "output_tokens": 1e400}}\n',
    '{"type": "result", "stats": {"input_tokens": true, "cached": "x"}, "status": 7}\n',
    '{"type": "turn.completed", "usage": {"input_tokens": 1, "cached_input_tokens": 99}}\n',
    '{"type": "item.completed", "item": {"type": "command_execution", "exit_code": "0"}}\n',
    '{"type": "step_finish", "part": {"tokens": {"input": NaN, "output": Infinity}}}\n',
    '{"type": "tool_use", "part": {"state": {"time": {"start": 9, "end": 1}}}}\n',
    '{"type": "tool_result", "tool_id": "never-seen", "timestamp": "9999-99-99"}\n',
    '{"type": "tool_use", "tool_id": 7, "timestamp": "0001-01-01T00:00:00+23:59"}\n',
    '{"messages": [1, {"role": "tool"}, {"role": "assistant", "tool_calls": 3, "extra": []}]}\n',
    '{"type": "item.completed", "item": {"type": "agent_message", "text": "\\ud800"}}\n',
    '{"type": "error", "error": {"data": {"message": "\\u0000\\n\\u001b[2J"}}}\n',
    "[" * 100_000 + "\n",
    '{"a":' * 50_000 + "\n",
    '{"type": "error", "message": ' + "9" * 10_000 + "}\n",
)


def read_by(driver: str, lines: Iterator[str] | tuple[str, ...]) -> Trajectory:
    """Read lines with one driver."""
    found = driver_named(driver).trajectory(lines)
    assert found is not None
    return found


@pytest.mark.parametrize("driver", DRIVERS)
def test_nothing_is_raised_when_lines_make_no_sense(driver: str) -> None:
    """Each line is skipped and counted, or read for what it is; counts are never negative."""
    found = read_by(driver, NASTY)

    assert found.skipped_lines > 0
    tokens = found.claimed_tokens
    assert tokens is None or min(tokens.input, tokens.cache_read, tokens.output) >= 0
    json.dumps([str(step) for step in found.steps]).encode("utf-8")
    for step in found.steps:
        str(step).encode("utf-8")


@pytest.mark.parametrize("driver", DRIVERS)
@settings(max_examples=60, deadline=None)
@given(
    line=st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: (
            st.lists(inner, max_size=4)
            | st.dictionaries(
                st.sampled_from(
                    ["type", "message", "content", "item", "part", "state", "usage", "extra"]
                ),
                inner,
                max_size=5,
            )
        ),
        max_leaves=12,
    )
)
def test_nothing_is_raised_when_fields_have_other_shapes(driver: str, line: object) -> None:
    """Any value may stand where another is expected."""
    for kind in ("assistant", "user", "result", "item.completed", "tool_use", "tool_result"):
        read_by(
            driver,
            (
                json.dumps({"type": kind, "message": line, "item": line, "part": line}),
                json.dumps({"messages": [line, {"role": "assistant", "extra": line}]}),
            ),
        )


def test_text_is_cut_when_an_agent_talks_without_end() -> None:
    """Neither a long message nor many of them fill the memory; the rest is counted."""
    words = "x" * (2 * read.LONGEST_TEXT)
    line = json.dumps({"type": "item.completed", "item": {"type": "agent_message", "text": words}})

    found = read_by("codex", (line for _ in range(400)))

    assert sum(len(step.text) for step in found.steps if isinstance(step, Message)) <= (
        read.MOST_TEXT
    )
    assert found.skipped_lines > 0


def test_steps_are_counted_and_not_kept_when_there_are_too_many() -> None:
    """The number of steps has a limit too."""
    line = '{"type": "item.completed", "item": {"type": "agent_message", "text": "a"}}'

    found = read_by("codex", (line for _ in range(read.MOST_STEPS + 5)))

    assert len(found.steps) == read.MOST_STEPS
    assert found.skipped_lines == 5


def test_a_line_is_skipped_when_it_is_too_long() -> None:
    """It is not even parsed."""
    found = read_by("codex", ('{"type": "error", "message": "' + "x" * read.LONGEST_LINE + '"}',))

    assert found.steps == ()
    assert found.skipped_lines == 1


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("Done.\n\nKnown limitations: none", "none"),
        ("Done.\n\n## Known limitations\n- Windows is untested.\n", "- Windows is untested."),
        ("**Known limitations:** slow on large files", "slow on large files"),
        ("Known limitations: old\nmore\nKnown limitations: new", "new"),
        ("I know its limitations: many", None),
        ("Known limitations:\n\n", None),
        ("", None),
    ],
)
def test_limitations_are_found_when_an_agent_states_them(words: str, expected: str | None) -> None:
    """The last such section of the final text is the agent's statement."""
    assert expected == known_limitations(Trajectory(steps=(), final_text=words))


def test_limitations_are_cut_when_they_are_long() -> None:
    """A manifest is no place for a novel."""
    found = known_limitations(
        Trajectory(steps=(), final_text="Known limitations: " + "word " * 5000)
    )

    assert found is not None
    assert len(found) <= LONGEST


def test_nothing_is_stated_when_there_is_no_transcript() -> None:
    """An unknown agent states nothing."""
    assert known_limitations(None) is None
