"""The ways to run Forkyard that must behave alike."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from behaviours.yard import Box, Done, Runner, Yard, as_root
from depth import first
from ordinary import OrdinaryUser, ordinary_user

MODES = first("rootless", "root")
"""What root mode does is in most other tests too, so its part of this suite is for the long run."""


@pytest.fixture(scope="module", params=MODES)
def yard(request: pytest.FixtureRequest) -> Iterator[Yard]:
    """Give an installation of each mode."""
    home: Path = request.getfixturevalue("module_home")
    if request.param == "root":
        folder = home.parent / "work"
        folder.mkdir()
        yield Yard(mode="root", home=home, folder=folder, run=as_root)
        return
    with ordinary_user(home.parent) as user:
        yield Yard(mode="rootless", home=user.state, folder=user.home, run=_as(user))


def _as(user: OrdinaryUser) -> Runner:
    def run(argv: Sequence[str], directory: Path, variables: Mapping[str, str]) -> Done:
        return user.run(*argv, directory=directory, variables=variables)

    return run


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
