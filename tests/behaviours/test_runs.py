"""The main job: agents, candidates, verdicts, and what is put into the user's tree."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from behaviours.yard import GIT, Yard

pytestmark = pytest.mark.deep

FIX = "good=echo fixed > state"
IDLE = "idle=true"
CHECK = "sh tests/check.sh"


def run(yard: Yard, path: Path, *arguments: str, code: int | None = 0) -> Any:  # noqa: ANN401 - JSON
    """Run agents on a repository; gives the run's one object."""
    words = ("run", "Fix it", *arguments, "--check", CHECK, "--quiet")
    return yard.ask(*words, code=code, directory=path)


def attempts(result: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON
    """Give attempts by agent."""
    return {one["agent"]: one for one in result["tasks"][0]["attempts"]}


def test_the_right_candidate_wins_when_agents_differ(yard: Yard) -> None:
    """Solved, failed, and one that breaks the check by editing it."""
    path = yard.repository()
    result = run(yard, path, "-a", FIX, "-a", IDLE, "-a", "cheat=echo true > tests/check.sh",
                 "--protected", "tests/**")  # fmt: skip
    verdicts = {name: one["evaluation"]["verdict"] for name, one in attempts(result).items()}
    assert verdicts == {"good": "solved", "idle": "failed", "cheat": "failed"}
    assert result["tasks"][0]["winner"] == attempts(result)["good"]["candidate"]["id"]


def test_exit_status_1_tells_that_none_was_good_enough(yard: Yard) -> None:
    """The run is over, nothing solved."""
    assert run(yard, yard.repository(), "-a", IDLE, code=1)["state"] == "finished"


def test_every_change_is_in_the_patch_when_an_agent_adds_edits_deletes_and_chmods(
    yard: Yard,
) -> None:
    """Staged, committed or neither; ignored files as well."""
    path = yard.repository()
    agent = (
        "all=echo fixed > state; echo n > new; rm docs/guide; chmod +x tests/check.sh;"
        " echo l > a.log; git add new; git -c user.name=a -c user.email=a@a commit -qm x;"
        " ln -s new l"
    )
    result = run(yard, path, "-a", agent)
    changed = {one["path"] for one in attempts(result)["all"]["candidate"]["files"]}
    assert {"state", "new", "docs/guide", "tests/check.sh", "l"} <= changed
    patch = yard.forkyard("diff", attempts(result)["all"]["candidate"]["id"]).stdout
    yard.program("sh", "-c", f"cat > {path}.patch <<'EOF'\n{patch}\nEOF")
    yard.program(*GIT, "apply", "--check", f"{path}.patch", directory=path)


def test_hostile_git_settings_run_nothing_when_a_candidate_is_collected(yard: Yard) -> None:
    """No hook, filter, fsmonitor or diff driver of an agent's."""
    path = yard.repository()
    canary = yard.folder / yard.name("canary")
    agent = (
        f"evil=echo fixed > state; git config core.fsmonitor 'touch {canary}; false';"
        f" git config core.hooksPath /workspace/repo/h;"
        f" git config filter.x.clean 'touch {canary};cat';"
        f" git config diff.x.textconv 'touch {canary}; cat';"
        " echo '* filter=x diff=x' > .gitattributes;"
        f" mkdir h; printf '#!/bin/sh\\ntouch {canary}\\n' > h/post-index-change; chmod +x h/*"
    )
    result = run(yard, path, "-a", agent)
    assert attempts(result)["evil"]["candidate"] is not None
    assert not canary.exists()


def test_an_attempt_is_ended_when_its_time_is_up(yard: Yard) -> None:
    """With all it started; what it did until then is a candidate."""
    agent = "slow=echo fixed > state; trap '' TERM; setsid sleep 6789 & sleep 6789"
    result = run(yard, yard.repository(), "-a", agent, "--timeout", "2s", code=None)
    found = attempts(result)["slow"]
    assert found["state"] == "timed-out"
    assert [one["path"] for one in found["candidate"]["files"]] == ["state"]
    assert yard.program("sh", "-c", "ps -eo args | grep -c '[s]leep 6789' || true").stdout == "0\n"


def test_an_agent_that_is_missing_is_its_own_failure(yard: Yard) -> None:
    """Told with the shell's words in its log."""
    result = run(yard, yard.repository(), "-a", "none=no-such-agent", code=None)
    assert attempts(result)["none"]["exit_code"] == 127
    log = yard.forkyard("logs", attempts(result)["none"]["id"])
    assert "no-such-agent" in log.stdout + log.stderr


def test_the_prompt_arrives_whole_when_it_is_full_of_a_shells_words(yard: Yard) -> None:
    """As a variable; nothing is quoted or expanded."""
    path, prompt = yard.repository(), 'it\'s "$HOME" `id` \\n ; rm -rf /\nsecond line'
    words = ("run", prompt, "-a", 'tell=printf %s "$PROMPT" > state', "--no-check", "--quiet")
    result = yard.ask(*words, code=None, directory=path)
    patch = yard.forkyard("diff", attempts(result)["tell"]["candidate"]["id"]).stdout
    assert "".join(f"+{line}\n" for line in prompt.splitlines()) in patch


def test_an_attempt_sees_no_later_history_and_no_other_attempt(yard: Yard) -> None:
    """One commit, no reflog, no other branch."""
    path = yard.repository()
    git = " ".join(GIT)
    later = f"{git} checkout -qb answer; echo fixed > state; {git} commit -qam later"
    yard.program("sh", "-c", f"cd {path}; {later}; {git} checkout -q main")
    agent = (
        "look=git log --all --format=%s > state; git reflog | wc -l >> state;"
        " ls /workspace >> state"
    )
    result = run(yard, path, "-a", agent, code=None)
    patch = yard.forkyard("diff", attempts(result)["look"]["candidate"]["id"]).stdout
    assert "+first\n+0\n+repo\n" in patch


def test_the_winner_is_applied_and_taken_back_when_a_person_says_so(yard: Yard) -> None:
    """Byte for byte, both ways."""
    path = yard.repository()
    result = run(yard, path, "-a", FIX)
    yard.forkyard("apply", result["tasks"][0]["winner"], directory=path)
    assert yard.program("cat", str(path / "state")).stdout == "fixed\n"
    yard.forkyard("undo", directory=path)
    assert yard.program("cat", str(path / "state")).stdout == "broken\n"


def test_apply_refuses_when_the_user_edited_what_it_touches(yard: Yard) -> None:
    """And touches nothing."""
    path = yard.repository()
    result = run(yard, path, "-a", FIX)
    yard.program("sh", "-c", f"echo mine > {path}/state")
    refused = yard.forkyard("apply", result["tasks"][0]["winner"], directory=path, code=4)
    assert "state" in refused.stderr
    assert yard.program("cat", str(path / "state")).stdout == "mine\n"


def test_nothing_of_a_run_goes_on_when_it_is_cancelled(yard: Yard) -> None:
    """Its attempts end as cancelled, their processes with them."""
    path = yard.repository()
    words = ("run", "wait", "-a", "idle=sleep 7654", "--no-check", "--detach")
    identity = yard.ask(*words, directory=path)["id"]
    yard.forkyard("cancel", identity)
    cancelled = yard.ask("watch", identity, "--quiet", code=None)
    assert cancelled["state"] == "cancelled"
    assert {one["state"] for one in attempts(cancelled).values()} == {"cancelled"}
    assert yard.program("sh", "-c", "ps -eo args | grep -c '[s]leep 7654' || true").stdout == "0\n"


def test_held_out_tests_judge_without_being_seen(yard: Yard) -> None:
    """The agent cannot read them; the check can."""
    path = yard.repository()
    task = {
        "name": "held", "prompt": "Fix", "start": {"repository": {"path": str(path)}},
        "agents": [{"name": "a", "driver": "command",
                    "command": "ls > listing; echo fixed > state"}],
        "checks": [{"name": "hidden", "run": "sh hidden.sh"}], "held_out": ["hidden"],
    }  # fmt: skip
    place = yard.folder / yard.name("task")
    test = f"echo 'grep -q fixed state' > {place}/hidden/hidden.sh"
    file = f"cat > {place}/task.yaml <<'EOF'\n{json.dumps(task)}\nEOF"
    yard.program("sh", "-c", f"mkdir -p {place}/hidden; {test}; {file}")
    result = yard.ask("run", str(place / "task.yaml"), "--quiet")
    found = attempts(result)["a"]
    assert found["evaluation"]["verdict"] == "solved"
    assert "hidden" not in yard.forkyard("diff", found["candidate"]["id"]).stdout


def test_the_manifest_names_what_was_in_force(yard: Yard) -> None:
    """Base, tree, digests and isolation."""
    result = run(yard, yard.repository(), "-a", FIX)
    found = attempts(result)["good"]["candidate"]
    manifest = next((yard.home / "runs").glob(f"{result['id']}/*/manifest.json"))
    document = json.loads(yard.program("cat", str(manifest)).stdout)
    assert document["result_tree"] == found["result_tree"]
    told = yard.ask("doctor")["protections"]
    assert {**told, **document["isolation"]} == {**document["isolation"], **told} | {
        "network": "none"
    }


@pytest.mark.parametrize("deadline", ["3s"])
def test_a_run_ends_when_its_deadline_is_over(yard: Yard, deadline: str) -> None:
    """Whatever its agents do."""
    result = run(yard, yard.repository(), "-a", "stuck=trap '' TERM; while :; do sleep 1; done",
                 "--deadline", deadline, code=None)  # fmt: skip
    assert result["state"] == "finished"
    assert attempts(result)["stuck"]["state"] == "timed-out"
