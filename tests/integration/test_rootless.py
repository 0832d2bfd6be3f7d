"""The main job as an ordinary user: the demo, his own repository, crashes, nothing left."""

from __future__ import annotations

import json

from ordinary import OrdinaryUser


def test_the_demo_ends_in_the_comparison_when_run_by_an_ordinary_user(
    ordinary: OrdinaryUser,
) -> None:
    """Template, forks, agents, collection, evaluation and ranking work without root."""
    done = ordinary.forkyard("demo", "--json")

    (task,) = json.loads(done.stdout.splitlines()[-1])["tasks"]
    verdicts = {one["agent"]: one["evaluation"]["verdict"] for one in task["attempts"]}
    assert verdicts == {"careful": "solved", "hasty": "regressed", "cheater": "failed"}
