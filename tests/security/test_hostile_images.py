"""Images whose layers, manifests or trees attack whoever unpacks, mounts or reads them."""

from __future__ import annotations

import gzip
import io
import json
import os
import stat
import tarfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from forkyard.base.clock import SystemClock
from forkyard.errors import WorkspaceError
from forkyard.model.image import Image
from forkyard.model.workspace import ImageKind, ImageSource, TemplateSpec
from forkyard.shim.ids import MARKS, STORAGE_FIRST_ID
from forkyard.workspace.image_layers import UnpackLimits
from forkyard.workspace.images import Images
from oci_images import (
    LAYER,
    Entry,
    LayoutFolder,
    digest,
    folder,
    layer,
    link,
    tiny_root,
    write_layout,
)
from station import Station, station

pytestmark = pytest.mark.anyio


@pytest.fixture
async def yard(home: Path) -> AsyncIterator[Station]:
    """Give a station over an empty state directory."""
    async with station(home) as opened:
        yield opened


async def take(
    yard: Station, place: Path, said: list[str] | None = None, limits: UnpackLimits | None = None
) -> Image:
    """Take the image of a layout folder."""
    images = Images(yard.workspaces, SystemClock(), limits=limits)
    source = ImageSource(kind=ImageKind.LAYOUT, location=str(place))
    return await images.obtain(source, (said if said is not None else []).append)


async def refuse(
    yard: Station, place: Path, reason: str, *, limits: UnpackLimits | None = None
) -> None:
    """Prove that an image is refused for a reason, and that nothing of it is left."""
    with pytest.raises(WorkspaceError, match=reason) as told:
        await take(yard, place, limits=limits)
    assert str(told.value).startswith(f"cannot pull image {place}: ")
    assert yard.journal.state.images == {}
    assert yard.left()["layers"] == []
    assert not list(yard.layout.run.glob("image-*"))


def names(place: Path) -> list[str]:
    """List what a folder holds."""
    return sorted(one.name for one in place.iterdir())


def layer_of(yard: Station, image: Image) -> Path:
    """Give the folder of a one-layer image."""
    (only,) = image.layers
    return yard.layout.layer(only)


REFUSED = {
    "up": (Entry(name="../../escaped", content=b"1"), "leads out of the layer"),
    "up-within": (Entry(name="a/../../escaped", content=b"1"), "leads out of the layer"),
    "deletes-up": (Entry(name="a/.wh..."), r"a/\.wh\.\.\.' deletes nothing that could exist"),
    "deletes-itself": (Entry(name=".wh.."), "deletes nothing that could exist"),
    "hard-link-up": (
        Entry(name="x", kind=tarfile.LNKTYPE, link="../../../etc/shadow"),
        "leads out of the layer",
    ),
    "hard-link-outside": (
        Entry(name="x", kind=tarfile.LNKTYPE, link="/etc/shadow"),
        "which this layer does not hold",
    ),
    "unknown-kind": (Entry(name="x", kind=b"Z"), "of an unknown kind"),
}


@pytest.mark.parametrize("case", REFUSED)
async def test_a_layer_is_refused_when_an_entry_leads_elsewhere(
    yard: Station, tmp_path: Path, case: str
) -> None:
    """The whole layer is refused; nothing appears outside, nothing stays inside."""
    entry, reason = REFUSED[case]
    write_layout(tmp_path / "l", [layer(Entry(name="first", content=b"1"), entry)])
    await refuse(yard, tmp_path / "l", reason)
    assert not list(tmp_path.rglob("escaped"))
    assert not list(yard.layout.home.rglob("escaped"))


@pytest.mark.parametrize("target", ["/etc", "../../../../../../etc", "."])
async def test_a_layer_is_refused_when_an_entry_lies_below_a_link(
    yard: Station, tmp_path: Path, target: str
) -> None:
    """A link is laid out as it is, and never gone through."""
    write_layout(tmp_path / "l", [layer(link("a", target), Entry(name="a/planted", content=b"1"))])
    await refuse(yard, tmp_path / "l", "'a' is a link, and a folder as well")
    assert not Path("/etc/planted").exists()


async def test_a_hard_link_is_refused_when_it_goes_through_a_link(
    yard: Station, tmp_path: Path
) -> None:
    """The target is looked for by descriptor, past no link."""
    write_layout(
        tmp_path / "l",
        [layer(link("a", "/etc"), Entry(name="x", kind=tarfile.LNKTYPE, link="a/passwd"))],
    )
    await refuse(yard, tmp_path / "l", "which this layer does not hold")


async def test_links_are_kept_and_not_followed_when_they_are_absolute(
    yard: Station, tmp_path: Path
) -> None:
    """What a link means is decided inside only."""
    tar = layer(link("passwd", "/etc/passwd"), Entry(name="a"), link("loop", "loop"))
    write_layout(tmp_path / "l", [tar])
    root = layer_of(yard, await take(yard, tmp_path / "l"))
    assert (root / "passwd").readlink() == Path("/etc/passwd")
    assert (root / "passwd").lstat().st_uid == STORAGE_FIRST_ID


async def test_devices_and_rights_are_taken_off_when_a_layer_has_them(
    yard: Station, tmp_path: Path
) -> None:
    """No device, no file capability, no mark of overlayfs's, no id outside the range."""
    pax = {
        "SCHILY.xattr.security.capability": "x",
        "SCHILY.xattr.trusted.overlay.opaque": "y",
        "SCHILY.xattr.user.overlay.opaque": "y",
        "SCHILY.xattr.user.kept": "z",
    }
    tar = layer(
        Entry(name="sda", kind=tarfile.BLKTYPE, device=(8, 0), mode=0o666),
        Entry(name="mem", kind=tarfile.CHRTYPE, device=(1, 1), mode=0o666),
        Entry(name="gone", kind=tarfile.CHRTYPE, device=(0, 0)),
        Entry(name="tool", content=b"1", mode=0o4755, pax=pax),
        Entry(name="big", content=b"1", uid=4_000_000_000, gid=70_000),
        folder("d"),
    )
    write_layout(tmp_path / "l", [tar])
    said: list[str] = []
    root = layer_of(yard, await take(yard, tmp_path / "l", said))
    assert names(root) == ["big", "d", "tool"]
    assert os.listxattr(root / "tool") == ["user.kept"]
    assert stat.S_IMODE((root / "tool").stat().st_mode) == 0o4755
    assert (root / "big").stat().st_uid == STORAGE_FIRST_ID + 65534
    assert any("device left out: 3" in line for line in said)
    assert any("owner that no sandbox has made 65534: 2" in line for line in said)


async def test_a_setuid_file_gives_nothing_when_a_command_runs_it(
    yard: Station, tmp_path: Path
) -> None:
    """The workspace is mounted nosuid, and new privileges are forbidden besides."""
    busybox = Path("/bin/busybox").read_bytes()
    root = tiny_root(Entry(name="suid/busybox", content=busybox, mode=0o6755))
    write_layout(tmp_path / "l", [root])
    source = ImageSource(kind=ImageKind.LAYOUT, location=str(tmp_path / "l"))
    await yard.templates.apply("t", TemplateSpec(image="x", image_source=source))
    built = await yard.templates.build("t")
    assert built.snapshot is not None
    row = await yard.workspaces.create(built.snapshot)
    told = await yard.run(row.id, "/suid/busybox id -u; /suid/busybox id -g", directory="/")
    assert told == "1000\n1000\n"
    await yard.workspaces.delete(row.id)


def bomb(size: int) -> bytes:
    """Write a tar stream of one file of zeros."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        info = tarfile.TarInfo("zeros")
        info.size = size
        archive.addfile(info, io.BytesIO(bytes(size)))
    return out.getvalue()


LIMITS = UnpackLimits(entries=100, size_bytes=1024**2)


async def test_a_layer_is_refused_when_it_unpacks_to_too_much(
    yard: Station, tmp_path: Path
) -> None:
    """Many entries, large files, and streams that blow up behind the archive's end."""
    many = layer(*(Entry(name=f"f{number}") for number in range(101)))
    write_layout(tmp_path / "many", [many])
    await refuse(yard, tmp_path / "many", "more than 100 entries", limits=LIMITS)
    write_layout(tmp_path / "large", [bomb(8 * 1024**2)])
    await refuse(yard, tmp_path / "large", "take more than 1048576 bytes", limits=LIMITS)
    write_layout(tmp_path / "behind", [layer(Entry(name="x")) + bytes(64 * 1024**2)])
    await refuse(yard, tmp_path / "behind", "more than may be unpacked", limits=LIMITS)


@pytest.mark.deep
async def test_a_layer_is_refused_when_a_header_claims_gigabytes(
    yard: Station, tmp_path: Path
) -> None:
    """What a header asks for is bounded by the helper's memory, not by ours."""
    info = tarfile.TarInfo("x")
    info.type, info.size = tarfile.XHDTYPE, 6 * 1024**3
    head = info.tobuf(tarfile.USTAR_FORMAT)
    made = LayoutFolder(tmp_path / "l")
    place = tmp_path / "blob"
    with gzip.open(place, "wb", compresslevel=1) as out:
        out.write(head)
        for _ in range(96):
            out.write(bytes(16 * 1024**2))
    blob = place.read_bytes()
    (tmp_path / "l").mkdir()
    kind = f"{LAYER}+gzip"
    descriptor = {"mediaType": kind, "digest": made.blob(blob), "size": len(blob)}
    write_layout(tmp_path / "l", [b""], descriptors=[descriptor])
    await refuse(yard, tmp_path / "l", "more memory than any real one|no tar archive|ends early")


async def test_a_layer_is_refused_when_it_is_not_what_its_digests_say(
    yard: Station, tmp_path: Path
) -> None:
    """The blob's own digest, and that of what it unpacks to."""
    tar = layer(Entry(name="x", content=b"1"))
    other = {"rootfs": {"type": "layers", "diff_ids": [digest(b"other")]}}
    write_layout(tmp_path / "diff", [tar], config=other)
    await refuse(yard, tmp_path / "diff", "its diff-id is sha256:")
    write_layout(tmp_path / "blob", [tar], compression="")
    for place in (tmp_path / "blob" / "blobs" / "sha256").iterdir():
        if place.read_bytes() == tar:
            place.write_bytes(tar[:-1] + b"\1")
    await refuse(yard, tmp_path / "blob", "its digest is sha256:")
    write_layout(tmp_path / "size", [tar], compression="")
    for place in (tmp_path / "size" / "blobs" / "sha256").iterdir():
        if place.read_bytes() == tar:
            place.write_bytes(tar + bytes(512))
    await refuse(yard, tmp_path / "size", "bytes, the image says")


async def test_a_layer_is_refused_when_it_is_damaged(yard: Station, tmp_path: Path) -> None:
    """Neither gzip nor tar, or cut off."""
    tar = layer(Entry(name="x", content=bytes(range(256)) * 64))
    packed = gzip.compress(tar)
    for name, blob, reason in (
        ("cut", packed[: len(packed) // 2], "ends early|no tar archive|damaged"),
        ("noise", b"\x1f\x8b" + bytes(4096), "no tar archive"),
    ):
        made = LayoutFolder(tmp_path / name)
        kind = f"{LAYER}+gzip"
        descriptor = {"mediaType": kind, "digest": made.blob(blob), "size": len(blob)}
        write_layout(tmp_path / name, [tar], descriptors=[descriptor])
        await refuse(yard, tmp_path / name, reason)


FOREIGN = "application/vnd.docker.image.rootfs.foreign.diff.tar.gzip"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda one: {**one, "mediaType": FOREIGN, "urls": ["http://x"]}, "kept elsewhere"),
        (lambda one: {**one, "mediaType": f"{LAYER}+gzip+encrypted"}, "of an unknown kind"),
        (lambda one: {**one, "digest": "sha256:../../../../etc/shadow"}, "without a digest"),
        (lambda one: {**one, "digest": f"sha256:{'0' * 64}"}, "its layout lacks sha256:0000"),
        (lambda one: {**one, "size": -1}, "without a digest or size"),
    ],
)
async def test_an_image_is_refused_when_a_layer_cannot_be_had_from_it(
    yard: Station,
    tmp_path: Path,
    change: Callable[[dict[str, object]], dict[str, object]],
    reason: str,
) -> None:
    """Foreign, encrypted, absent and nonsensical layers; a digest is never a path."""
    tar = layer(Entry(name="x"))
    (tmp_path / "l").mkdir()
    told = change(LayoutFolder(tmp_path / "l").layer(tar))
    write_layout(tmp_path / "l", [tar], descriptors=[told])
    await refuse(yard, tmp_path / "l", reason)


async def test_an_image_is_refused_when_its_layout_holds_links_or_nonsense(
    yard: Station, tmp_path: Path
) -> None:
    """A layout is read past no link, and its documents within bounds."""
    tar = layer(Entry(name="x"))
    write_layout(tmp_path / "link", [tar], compression="")
    for place in (tmp_path / "link" / "blobs" / "sha256").iterdir():
        if place.read_bytes() == tar:
            place.rename(tmp_path / "moved")
            place.symlink_to(tmp_path / "moved")
    await refuse(yard, tmp_path / "link", "its layout lacks sha256:")
    for name, text, reason in (
        ("deep", "[" * 200_000, "no JSON"),
        ("list", "[]", "no JSON object"),
        ("huge", " " * 5_000_000, "larger than"),
        ("none", json.dumps({"schemaVersion": 2, "manifests": []}), "nothing for linux/"),
    ):
        write_layout(tmp_path / name, [tar])
        (tmp_path / name / "index.json").write_text(text)
        await refuse(yard, tmp_path / name, reason)
    write_layout(tmp_path / "fifo", [tar])
    (tmp_path / "fifo" / "index.json").unlink()
    os.mkfifo(tmp_path / "fifo" / "index.json")
    await refuse(yard, tmp_path / "fifo", "no plain file")


async def test_nothing_of_the_host_is_touched_when_an_images_folders_are_links(
    yard: Station, tmp_path: Path
) -> None:
    """Links where we lay or mount something are hidden by ours, neither followed nor kept."""
    places = ("proc", "dev", "sys", "tmp", "home", "var", "workspace")
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "hosts").write_text("host's\n")
    root = layer(
        *(link(name, str(outside)) for name in places),
        folder("etc"),
        *(link(f"etc/{name}", "/../../../etc/shadow") for name in ("passwd", "group", "hosts")),
        link("etc/resolv.conf", "../run/systemd/resolve/stub-resolv.conf"),
        folder("bin"),
        Entry(name="bin/sh", content=Path("/bin/busybox").read_bytes(), mode=0o755),
        link("bin/cat", "sh"),
        link("bin/ls", "sh"),
    )
    write_layout(tmp_path / "l", [root])
    source = ImageSource(kind=ImageKind.LAYOUT, location=str(tmp_path / "l"))
    await yard.templates.apply("t", TemplateSpec(image="x", image_source=source))
    built = await yard.templates.build("t")
    assert built.snapshot is not None
    row = await yard.workspaces.create(built.snapshot)
    told = await yard.run(
        row.id, "cat /etc/passwd /etc/resolv.conf; ls -a /workspace", directory="/"
    )
    assert "workspace:x:1000:1000" in told
    assert "# no network" in told
    assert "root:*" not in told
    await yard.workspaces.delete(row.id)
    assert names(outside) == ["hosts"]


async def test_nothing_of_the_host_is_touched_when_root_moves_folders_before_a_restart(
    yard: Station, tmp_path: Path
) -> None:
    """Root of a workspace may break its own start, never reach past its tree."""
    write_layout(tmp_path / "l", [tiny_root()])
    source = ImageSource(kind=ImageKind.LAYOUT, location=str(tmp_path / "l"))
    await yard.templates.apply("t", TemplateSpec(image="x", image_source=source))
    built = await yard.templates.build("t")
    assert built.snapshot is not None
    row = await yard.workspaces.create(built.snapshot)
    outside = tmp_path / "outside"
    outside.mkdir(mode=0o777)
    outside.chmod(0o777)
    script = (
        f"cd /; for one in home workspace var etc; do mv $one $one.old; ln -s {outside} $one; done"
    )
    await yard.workspaces.exec(
        row.id, ["/bin/sh", "-c", script], as_root=True, working_directory="/"
    )
    await yard.workspaces.stop(row.id)
    done = await yard.workspaces.exec(row.id, ["/bin/sh", "-c", "true"], working_directory="/")
    assert done.result is not None
    await yard.workspaces.delete(row.id)
    assert names(outside) == []


async def test_marks_of_overlayfs_are_ours_alone_when_a_folder_is_opaque(
    yard: Station, tmp_path: Path
) -> None:
    """The one attribute that is set is that of this mode."""
    tar = layer(folder("d"), Entry(name="d/.wh..wh..opq"), Entry(name="d/new", content=b"1"))
    write_layout(tmp_path / "l", [tar])
    root = layer_of(yard, await take(yard, tmp_path / "l"))
    assert os.getxattr(root / "d", f"{MARKS}opaque") == b"y"
    assert names(root / "d") == ["new"]
