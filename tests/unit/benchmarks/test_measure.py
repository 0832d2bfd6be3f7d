"""The benchmark's own arithmetic, and what it refuses to measure."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from benchmarks import measure
from benchmarks.measure import Figure, Timed, in_pairs, tell
from benchmarks.ours import PROTECTIONS, refuse_unprotected
from benchmarks.trees import make_repository, path_of

from forkyard.wire.schema import DoctorReport


@pytest.fixture(autouse=True)
def _no_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing here needs to come to rest."""
    monkeypatch.setattr(measure, "REST_SECONDS", 0.0)


def _taking(*seconds: float) -> Timed:
    told: Iterator[float] = iter(seconds)

    async def timed() -> float:
        return next(told)

    return timed


def _report(**changes: object) -> DoctorReport:
    values: dict[str, object] = {
        "runtime": "crun 1.8.1",
        "storage_mode": "root",
        "protections": dict.fromkeys(PROTECTIONS, "in force"),
        "digest": "d1",
    }
    return DoctorReport.model_validate({**values, **changes})


def test_takes_the_median_of_ratios_when_pairs_differ() -> None:
    """Not the ratio of medians; the first of each side is for nothing."""
    pairs = in_pairs(
        "row", _taking(9, 0.1, 0.2, 0.4), _taking(9, 1.0, 4.0, 4.0), pairs=3, at_least=8
    )
    figure = asyncio.run(pairs)
    assert (figure.ours, figure.theirs, figure.ratio) == (200.0, 4000.0, 10.0)
    assert (figure.runs, figure.unit, figure.met) == (3, "ms", True)


@pytest.mark.parametrize(("large", "met"), [(1.2, True), (1.3, False)])
def test_holds_growth_against_its_limit_when_ratios_may_not_exceed_it(
    large: float, *, met: bool
) -> None:
    """For growth the ratio is large by small."""
    figure = asyncio.run(in_pairs("row", _taking(1, 1), _taking(1, large), pairs=1, at_most=1.2))
    assert figure.ratio == large
    assert figure.met is met


def test_prints_the_documented_keys_when_asked_for_json(capsys: pytest.CaptureFixture[str]) -> None:
    """One object on one line, with what readers rely on."""
    figure = Figure(
        name="row", ours=1, theirs=9, ratio=9, runs=10, unit="ms", target=">= 8", met=True
    )
    tell(figure, as_json=True)
    (line,) = capsys.readouterr().out.splitlines()
    assert {"name", "ours", "theirs", "ratio", "runs", "unit"} <= json.loads(line).keys()


def test_measures_when_every_protection_is_in_force() -> None:
    """A watched disk is said by doctor and is no reason to refuse."""
    protections = {**dict.fromkeys(PROTECTIONS, "in force"), "disk limit": "not enforced"}
    refuse_unprotected(_report(protections=protections))


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"digest": ""}, "no digest"),
        ({"problems": ["no runtime"]}, "no runtime"),
        ({"protections": {}}, "system calls is not told of"),
        (
            {"protections": {**dict.fromkeys(PROTECTIONS, "x"), "memory limit": "not enforced"}},
            "memory limit: not enforced",
        ),
    ],
)
def test_refuses_to_measure_when_a_protection_is_missing(
    changes: dict[str, object], told: str
) -> None:
    """Figures without protections would say nothing."""
    with pytest.raises(SystemExit, match=told):
        refuse_unprotected(_report(**changes))


def test_makes_the_same_tree_when_made_again(tmp_path: Path) -> None:
    """The commit, and so every byte, is the same."""
    commits = set()
    for name in ("a", "b"):
        make_repository(tmp_path / name, 250)
        told = subprocess.run(
            ["git", "-C", tmp_path / name, "rev-parse", "HEAD"], check=True, capture_output=True
        )
        commits.add(told.stdout)
        assert (tmp_path / name / path_of(249)).is_file()
    assert len(commits) == 1
