"""Suites of root mode, run once more as root over an ordinary user's sub-ids."""

from __future__ import annotations

import pytest

from ordinary import OrdinaryUser

SUITES = {
    "tests/security/test_sandbox_probe.py": 95,
    "tests/contract/test_fleet.py": 5,
    "tests/integration/test_fleet.py": 20,
}
"""And how many tests each has at least: one that lost its tests would pass."""


@pytest.mark.parametrize("suite", SUITES)
def test_a_suite_of_root_mode_passes_without_root(suite: str, ordinary: OrdinaryUser) -> None:
    """What a sandbox does and what is denied to it are the same, test by test."""
    outcomes = ordinary.tests(suite)

    assert {name: words for name, words in outcomes.items() if words != "passed"} == {}
    assert len(outcomes) >= SUITES[suite]
