"""The ways to run Forkyard that must behave alike."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from behaviours.yard import Box, Yard, as_root

MODES = ("root",)


@pytest.fixture(scope="module", params=MODES)
def yard(request: pytest.FixtureRequest) -> Yard:
    """Give an installation of each mode."""
    home: Path = request.getfixturevalue("module_home")
    folder = home.parent / "work"
    folder.mkdir()
    return Yard(mode=request.param, home=home, folder=folder, run=as_root)


@pytest.fixture(scope="module")
def template(yard: Yard) -> str:
    """Give a built template of a small repository."""
    return yard.prepared()


@pytest.fixture(scope="module")
def box(yard: Yard, template: str) -> Box:
    """Give a workspace that tests share: they may look, not change what others look at."""
    return yard.workspace(template=template)


@pytest.fixture
def fresh(yard: Yard, template: str) -> Iterator[Box]:
    """Give a workspace of a test's own."""
    made = yard.workspace(template=template)
    yield made
    made.delete()
