"""Images built from a Containerfile, in a sandbox of their own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from forkyard.base.clock import SystemClock
from forkyard.errors import ConfigError, NotFoundError, WorkspaceError
from forkyard.model.ids import SnapshotId
from forkyard.model.image import Image
from forkyard.model.workspace import (
    ImageKind,
    ImageSource,
    Limits,
    NetworkPolicy,
    WorkspaceState,
)
from forkyard.shim.ids import IDS
from forkyard.workspace.images import SEARCH_PATH, Building, Images
from oci_images import tiny_root, write_layout
from registry import registry
from station import Station, station

pytestmark = pytest.mark.anyio


@pytest.fixture
async def yard(home: Path) -> AsyncIterator[Station]:
    """Give a station over an empty state directory."""
    async with station(home) as opened:
        yield opened


def context(folder: Path, text: str, *, name: str = "Containerfile") -> Path:
    """Write a context with one file beside the Containerfile."""
    folder.mkdir()
    (folder / "greeting").write_text("hello\n")
    (folder / name).write_text(text)
    return folder


async def build(
    yard: Station,
    place: Path,
    *,
    network: NetworkPolicy = NetworkPolicy.NONE,
    search_path: str = SEARCH_PATH,
    said: list[str] | None = None,
) -> Image:
    """Build an image; give its row."""
    images = Images(yard.workspaces, SystemClock(), search_path=search_path)
    building = Building(
        owner="tmpl_000000", snapshot=SnapshotId("snap_000000"), network=network, limits=Limits()
    )
    source = ImageSource(kind=ImageKind.BUILD, location=str(place))
    return await images.obtain(source, (said if said is not None else []).append, building)


def content(yard: Station, image: Image, path: str) -> bytes | None:
    """Read a file of an image's merged tree."""
    return yard.workspaces.layers.read(image.layers, path, 1024**2)


@pytest.mark.parametrize("is_inside", [True, False])
async def test_a_context_is_refused_when_it_is_our_own_state(
    yard: Station, home: Path, *, is_inside: bool
) -> None:
    """Build steps read all of it, and the key of every secret lies there."""
    place = home / "state" / "secrets" if is_inside else home
    place.mkdir(parents=True, exist_ok=True)
    (place / "Containerfile").write_text("FROM scratch\n")

    with pytest.raises(ConfigError, match="its context is Forkyard's own state"):
        await build(yard, place)


async def test_our_own_state_is_not_taken_when_a_context_holds_it(
    yard: Station, home: Path
) -> None:
    """As with a home for a context: the rest is taken, and that is told."""
    (home.parent / "greeting").write_text("hello\n")
    (home.parent / "Containerfile").write_text("FROM scratch\nCOPY . /a/\n")

    said: list[str] = []
    image = await build(yard, home.parent, said=said)

    assert content(yard, image, "/a/greeting") == b"hello\n"
    assert yard.workspaces.layers.lookup(image.layers, f"/a/{home.name}") is None
    assert f"not taken: {home.name}: holds Forkyard's own state; passed over" in said


@pytest.mark.parametrize("name", ["Containerfile", "Dockerfile"])
async def test_an_image_is_built_when_a_context_holds_a_containerfile(
    yard: Station, tmp_path: Path, name: str
) -> None:
    """Stages, arguments, copies and steps as root, on a base from a registry; nothing is left."""
    write_layout(tmp_path / "l", [tiny_root()], variables={"PATH": "/bin", "BASE": "1"})
    with registry(tmp_path / "r") as server:
        reference = server.push(tmp_path / "l", "team/base:1")
        said: list[str] = []
        image = await build(
            yard,
            context(
                tmp_path / "c",
                f"ARG BASE={reference}\nFROM $BASE AS one\nRUN id -u > /who\nFROM ${{BASE}}\n"
                "ENV ADDED=2\nCOPY greeting /greeting\nCOPY --from=one /who /usr/local/who\n"
                "RUN touch /mine && chown 5:6 /mine && chmod 600 /mine\n",
                name=name,
            ),
            said=said,
        )
    assert content(yard, image, "/greeting") == b"hello\n"
    assert content(yard, image, "/usr/local/who") == b"0\n"
    assert image.variables == {"PATH": "/bin", "BASE": "1", "ADDED": "2"}
    found = yard.workspaces.layers.lookup(image.layers, "/mine")
    assert found is not None
    assert (found.facts.st_uid, found.facts.st_mode & 0o777) == (IDS.storage_id(5), 0o600)
    assert any("in a sandbox of its own; its steps reach: nothing" in line for line in said)
    assert all(
        one.state is WorkspaceState.DELETED for one in yard.journal.state.workspaces.values()
    )
    assert yard.left()["layers"] == sorted(image.layers)
    assert yard.left()["workspaces"] == []


async def test_a_step_sees_neither_the_host_nor_a_network_when_it_runs_as_root(
    yard: Station, tmp_path: Path
) -> None:
    """Root of a step is root of a sandbox's own namespace: it cannot mount, or write elsewhere."""
    write_layout(tmp_path / "l", [tiny_root()])
    (tmp_path / "secret").write_text("of the host")
    steps = (
        f"ls {tmp_path} / > /seen 2>&1; cat /proc/net/dev | wc -l >> /seen;"
        " cat /proc/self/uid_map >> /seen; mount -t tmpfs x /root 2>> /seen; true"
    )
    with registry(tmp_path / "r") as server:
        reference = server.push(tmp_path / "l", "base:1")
        image = await build(yard, context(tmp_path / "c", f"FROM {reference}\nRUN {steps}\n"))
    seen = (content(yard, image, "/seen") or b"").decode()
    assert f"ls: {tmp_path}: No such file or directory" in seen
    assert "\n3\n" in seen, "two lines of headings, and the loopback"
    assert "4294967295" not in seen, "no id of the machine's own namespace"
    assert "mount: permission denied" in seen


async def test_a_build_fails_with_the_steps_words_when_one_fails(
    yard: Station, tmp_path: Path
) -> None:
    """The reason is told, the output is in the log, and nothing stays."""
    write_layout(tmp_path / "l", [tiny_root()])
    said: list[str] = []
    with registry(tmp_path / "r") as server:
        reference = server.push(tmp_path / "l", "base:1")
        place = context(tmp_path / "c", f"FROM {reference}\nRUN echo before; exit 7\n")
        with pytest.raises(WorkspaceError, match=r"cannot build image .*exit status 7"):
            await build(yard, place, said=said)
    assert "before" in said
    assert yard.left()["layers"] == []
    assert yard.journal.state.images == {}


async def test_a_build_is_refused_when_something_it_needs_is_missing(
    yard: Station, tmp_path: Path
) -> None:
    """No tool, no folder, no file, and a network that no step can have."""
    place = context(tmp_path / "c", "FROM scratch\nCOPY greeting /\n")
    with pytest.raises(WorkspaceError, match="buildah is not installed"):
        await build(yard, place, search_path=str(tmp_path))
    with pytest.raises(NotFoundError, match="there is no such folder"):
        await build(yard, tmp_path / "nowhere")
    (place / "Containerfile").unlink()
    with pytest.raises(NotFoundError, match=r"there is no .*Dockerfile"):
        await build(yard, place)
    with pytest.raises(ConfigError, match="open or none, not gateway"):
        await build(yard, place, network=NetworkPolicy.GATEWAY)


async def test_an_image_is_built_from_nothing_when_it_starts_from_scratch(
    yard: Station, tmp_path: Path
) -> None:
    """No base image is looked for."""
    image = await build(yard, context(tmp_path / "c", "FROM scratch\nCOPY greeting /a/\n"))
    assert content(yard, image, "/a/greeting") == b"hello\n"
