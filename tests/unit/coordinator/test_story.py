"""Output as a trajectory: claims apart from what was observed, hostile lines included."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from forkyard.agents.claude_code import ClaudeCode
from forkyard.agents.command import CommandDriver
from forkyard.agents.trajectory import Trajectory
from forkyard.base.masking import Masker
from forkyard.coordinator import story
from forkyard.coordinator.story import FILE_NAME, keep_story, read_story
from forkyard.model.execution import ExecResult, StopReason
from forkyard.model.ids import ExecId
from forkyard.model.run import AgentSpec

AGENT = AgentSpec(name="a", driver="claude-code", command="")
RESULT = ExecResult(
    id=ExecId("exec_000000"),
    stop_reason=StopReason.EXITED,
    exit_code=0,
    elapsed_seconds=1.0,
    stdout_bytes=0,
    stderr_bytes=0,
)
LINES = (
    {"type": "system", "subtype": "init", "session_id": "s", "claude_code_version": "9.9"},
    {
        "type": "assistant",
        "message": {"id": "m1", "role": "assistant", "content": [{"type": "text", "text": "Hi"}]},
    },
    {
        "type": "result",
        "is_error": False,
        "result": "Done.\n\nKnown limitations: only one case.",
        "usage": {"input_tokens": 1, "output_tokens": 2},
    },
)


class Broken(ClaudeCode):
    """A driver that trips over what it reads."""

    def trajectory(self, lines: Iterable[str]) -> Trajectory | None:
        """Trip."""
        raise KeyError(next(iter(lines)))


def printed(folder: Path, *lines: object) -> Path:
    """Write what an agent printed."""
    path = folder / "stdout"
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return path


def test_claims_lie_apart_from_what_was_observed(tmp_path: Path) -> None:
    """Its own counters, its success and its limits are its word."""
    found = read_story(ClaudeCode(), AGENT, RESULT, printed(tmp_path, *LINES))
    keep_story(tmp_path / "out", found, {"tokens": 7}, mask=bytes)
    document = json.loads((tmp_path / "out" / FILE_NAME).read_text())

    assert found.limitations == "only one case."
    assert document["claims"]["known_limitations"] == "only one case."
    assert document["claims"]["agent_version"] == "9.9"
    assert document["observed"] == {"tokens": 7}
    assert next(step["kind"] for step in document["steps"]) == "message"


def test_secret_is_masked_when_the_trajectory_is_kept(tmp_path: Path) -> None:
    """Whatever an agent got hold of."""
    found = read_story(ClaudeCode(), AGENT, RESULT, printed(tmp_path, *LINES))
    keep_story(tmp_path, found, {}, mask=lambda content: content.replace(b"only one", b"***"))

    assert "only one" not in (tmp_path / FILE_NAME).read_text()


def test_secret_is_masked_when_a_claim_holds_it(tmp_path: Path) -> None:
    """What the agent states goes into the journal, so it is masked before anybody reads it."""
    masker = Masker({"KEY": "only one case."})
    path = printed(tmp_path, *LINES)
    found = read_story(ClaudeCode(), AGENT, RESULT, path, mask=masker.mask)

    assert found.limitations == "[secret KEY]"
    assert found.trajectory is not None
    assert "only one" not in repr(found)


def test_nothing_is_kept_when_nobody_can_read_the_output(tmp_path: Path) -> None:
    """An unknown agent's output is its output, and no trajectory."""
    found = read_story(CommandDriver(), AGENT, RESULT, printed(tmp_path, "x"))
    keep_story(tmp_path, found, {}, mask=bytes)

    assert not (tmp_path / FILE_NAME).exists()
    assert found.told is not None
    assert found.limitations is None


def test_attempt_keeps_its_result_when_its_transcript_is_strange(tmp_path: Path) -> None:
    """Whatever it printed, and also where there is no output at all."""
    strange = tmp_path / "strange"
    strange.write_bytes(b"\xff\x00{" + b"[" * 200_000 + b'\n{"type": 5}\n')

    assert read_story(ClaudeCode(), AGENT, RESULT, strange).told is not None
    assert read_story(Broken(), AGENT, RESULT, printed(tmp_path, *LINES)).trajectory is None
    assert read_story(ClaudeCode(), AGENT, None, tmp_path / "none").told is None


def test_line_is_cut_when_it_is_too_long(tmp_path: Path) -> None:
    """It is counted, and the next one is read."""
    path = tmp_path / "long"
    path.write_bytes(b"x" * (story.LONGEST_LINE + 5) + b"\n" + b'{"type": "system"}\n')
    found = read_story(ClaudeCode(), AGENT, RESULT, path)

    assert found.trajectory is not None
    assert found.trajectory.skipped_lines >= 2
