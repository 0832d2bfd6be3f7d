"""Random trees of random names, turned into other random trees: carried whole, or refused."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from forkyard.model.candidate import CandidateStatus
from forkyard.model.workspace import REPOSITORY
from stopped import Elsewhere, Picture, Yard, picture, quick_folder

SEED = int(os.environ.get("FORKYARD_TEST_SEED", "0")) or secrets.randbelow(2**32)

_WILD = st.binary(min_size=1, max_size=12).map(
    lambda raw: raw.replace(b"\0", b"\1").replace(b"/", b"%")
)
_NAMES = st.one_of(
    st.sampled_from([b"a", b"b", b"A", b"dir", b".gitignore", b".gitattributes", b"a b", b"x.o"]),
    _WILD,
).filter(lambda name: name not in (b".", b"..") and name.lower() != b".git")
_CONTENTS = st.one_of(
    st.binary(max_size=40), st.sampled_from([b"", b"one\ntwo\n", b"*\n", b"\r\n"])
)
_LEAVES = st.one_of(
    st.tuples(st.just("file"), _CONTENTS),
    st.tuples(st.just("program"), _CONTENTS),
    st.tuples(st.just("link"), _WILD),
)
_TREES = st.recursive(
    st.dictionaries(_NAMES, _LEAVES, max_size=5),
    lambda inner: st.dictionaries(_NAMES, st.one_of(_LEAVES, inner), max_size=5),
    max_leaves=12,
)


def _build(directory: bytes, tree: dict[bytes, object]) -> None:
    for name, what in tree.items():
        place = directory + b"/" + name
        if isinstance(what, dict):
            os.mkdir(place)  # noqa: PTH102 - bytes
            _build(place, what)
            continue
        assert isinstance(what, tuple)
        kind, content = what
        if kind == "link":
            Path(os.fsdecode(place)).symlink_to(os.fsdecode(content))
        else:
            descriptor = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
            os.write(descriptor, content)
            os.fchmod(descriptor, 0o755 if kind == "program" else 0o644)
            os.close(descriptor)


def _rebuild(repository: Path, tree: dict[bytes, object]) -> None:
    subprocess.run(["find", repository, "-mindepth", "1", "-delete"], check=True)
    _build(os.fsencode(repository), tree)


@pytest.fixture
def folder() -> Iterator[Path]:
    """Give a directory for all examples of a test."""
    made = quick_folder("fy-random-")
    yield made
    shutil.rmtree(made)


def _check(
    folder: Path, before: dict[bytes, object], after: dict[bytes, object]
) -> CandidateStatus:
    place = Path(tempfile.mkdtemp(dir=folder))
    yard = Yard(place)
    layer = yard.layer(lambda repository: _build(os.fsencode(repository), before))
    base = yard.record(layer)
    workspace = yard.fork(layer)
    yard.inside(workspace, lambda repository: _rebuild(repository, after))
    candidate = yard.collect(workspace, base)
    whole = yard.collect(workspace, base, full=True)
    assert whole.result_tree == candidate.result_tree
    assert whole.manifest_sha256 != ""
    if candidate.status is CandidateStatus.INVALID:
        assert any("git refuses a path" in problem for problem in candidate.problems)
    else:
        assert candidate.status is CandidateStatus.COMPLETE
        (place / "elsewhere").mkdir()
        elsewhere = Elsewhere(place / "elsewhere", yard.layout.layer(layer) / REPOSITORY.strip("/"))
        assert elsewhere.tree == base.tree
        tree, replayed = elsewhere.replay(yard.out(workspace) / "patch")
        assert tree == candidate.result_tree
        ignored = {os.fsencode(item.path).rstrip(b"/") for item in candidate.ignored}

        def carried(seen: Picture) -> Picture:
            return {
                path: file
                for path, file in seen.items()
                if not any(path == out or path.startswith(out + b"/") for out in ignored)
            }

        assert carried(replayed) == carried(yard.inside(workspace, picture))
    shutil.rmtree(place)
    return candidate.status


def _examples(count: int) -> Callable[[Path], None]:
    @seed(SEED)
    @settings(
        max_examples=count,
        deadline=None,
        database=None,
        print_blob=True,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(before=_TREES, after=_TREES)
    def run(folder: Path, before: dict[bytes, object], after: dict[bytes, object]) -> None:
        _check(folder, before, after)

    def test(folder: Path) -> None:
        sys.stderr.write(f"FORKYARD_TEST_SEED={SEED}\n")
        run(folder)

    return test


def test_a_change_is_refused_in_words_when_git_refuses_the_bases_own_path(folder: Path) -> None:
    """No patch can take back what git would never have put there."""
    before: dict[bytes, object] = {
        b"kept": ("file", b"1\n"),
        b"a": {b".gitmodules": ("link", b"x")},
    }

    assert _check(folder, before, {b"kept": ("file", b"1\n")}) is CandidateStatus.INVALID


def test_random_tree_is_carried_or_refused(folder: Path) -> None:
    """A few each time; the seed is printed where one fails."""
    _examples(10)(folder)


@pytest.mark.deep
@pytest.mark.timeout(1800)
def test_many_random_trees_are_carried_or_refused(folder: Path) -> None:
    """Many, for the long run."""
    _examples(400)(folder)
