"""Images from layouts, archives and registries; workspaces whose root is one; root inside."""

from __future__ import annotations

import subprocess
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from forkyard.base.clock import SystemClock
from forkyard.errors import ConflictError, ForkyardError, NotFoundError, WorkspaceError
from forkyard.model.image import ImageState
from forkyard.model.workspace import (
    Credentials,
    ImageKind,
    ImageSource,
    Snapshot,
    TemplateSpec,
    WorkspaceState,
)
from forkyard.workspace.images import Images
from forkyard.workspace.templates import Templates
from oci_images import Entry, folder, layer, tiny_root, write_layout
from registry import PASSWORD, USER, registry
from station import Station, make_repository, station

pytestmark = pytest.mark.anyio


@pytest.fixture
async def yard(home: Path) -> AsyncIterator[Station]:
    """Give a station over an empty state directory."""
    async with station(home) as opened:
        yield opened


def from_layout(path: Path) -> ImageSource:
    """Name an image in a layout folder."""
    return ImageSource(kind=ImageKind.LAYOUT, location=str(path))


def from_registry(reference: str, *, secret: str | None = None) -> ImageSource:
    """Name an image in a registry."""
    credentials = Credentials(username=USER, secret=secret) if secret else None
    return ImageSource(kind=ImageKind.REGISTRY, location=reference, credentials=credentials)


async def build(yard: Station, source: ImageSource, *, name: str = "t", **more: object) -> Snapshot:
    """Build a template on an image; give its snapshot."""
    spec = TemplateSpec(image=source.location, image_source=source)
    await yard.templates.apply(name, replace(spec, **more))  # type: ignore[arg-type]
    built = await yard.templates.build(name)
    assert built.snapshot is not None
    return yard.journal.state.snapshots[built.snapshot]


async def shell(yard: Station, snapshot: Snapshot, command: str, *, as_root: bool = False) -> str:
    """Run a command in a fork of a snapshot that lives as long as it; give what it printed."""
    row = await yard.workspaces.create(snapshot.id)
    try:
        done = await yard.workspaces.exec(
            row.id, ["/bin/sh", "-c", command], as_root=as_root, timeout_seconds=60
        )
        place = yard.layout.exec(row.id, done.id)
        text = (place / "stdout").read_text() + (place / "stderr").read_text()
        assert done.result is not None
        assert done.result.exit_code == 0, f"{done.result}: {text}"
        return text
    finally:
        await yard.workspaces.delete(row.id)


def log_of(yard: Station, name: str = "t") -> str:
    """Give the log of a template's last build."""
    return yard.templates.log(yard.templates.get(name)).read_text()


async def test_a_workspace_has_the_images_files_user_and_variables_when_built_on_a_layout(
    yard: Station, tmp_path: Path
) -> None:
    """The root is the image's, the user is ours, and the template's variables win."""
    root = tiny_root(Entry(name="etc/os-release", content=b"ID=tiny\n"))
    digest = write_layout(tmp_path / "l", [root], variables={"GOPATH": "/go", "PATH": "/bin:/x"})
    made = await build(yard, from_layout(tmp_path / "l"), variables={"GOPATH": "/mine"})
    assert made.environment.image is not None
    assert made.environment.image.digest == digest
    assert made.environment.host_packages is None
    told = await shell(
        yard, made, "id -un; id -u; echo $HOME $GOPATH $PATH; cat /etc/os-release; touch ~/x ./y"
    )
    assert told == "workspace\n1000\n/home/workspace /mine /bin:/x\nID=tiny\n"


async def test_a_login_shell_keeps_the_images_path_when_its_profile_sets_another(
    yard: Station, tmp_path: Path
) -> None:
    """Agents run commands in login shells; those that are given another PATH keep that one."""
    profile = b'PATH=/usr/bin:/bin\nexport PATH\nfor i in /etc/profile.d/*.sh; do . "$i"; done\n'
    root = tiny_root(
        folder("etc/profile.d"),
        Entry(name="etc/profile", content=profile),
        Entry(name="etc/profile.d/tool.sh", content=b"PATH=$PATH:/tool\n"),
    )
    write_layout(tmp_path / "l", [root], variables={"PATH": "/bin:/go/bin"})
    made = await build(yard, from_layout(tmp_path / "l"))
    told = await shell(yard, made, "sh -lc 'echo $PATH'; PATH=/bin:/mine sh -lc 'echo $PATH'")
    assert told == "/bin:/go/bin:/tool\n/bin:/mine:/tool\n"


async def test_an_images_own_user_and_home_are_kept_when_it_has_uid_1000(
    yard: Station, tmp_path: Path
) -> None:
    """No second account is made beside the image's own."""
    users = b"root:x:0:0::/root:/bin/sh\nnode:x:1000:1000::/srv/node:/bin/sh\n"
    root = tiny_root(
        folder("srv"), folder("srv/node", uid=1000), Entry(name="etc/passwd", content=users)
    )
    write_layout(tmp_path / "l", [root])
    made = await build(yard, from_layout(tmp_path / "l"))
    told = await shell(yard, made, "whoami; cd; pwd; touch here; cat /etc/passwd")
    assert told == f"node\n/srv/node\n{users.decode()}"


async def test_root_of_the_workspace_installs_a_file_when_its_user_cannot(
    yard: Station, tmp_path: Path
) -> None:
    """Root has what package managers need, in the sandbox's own namespace, and no more."""
    write_layout(tmp_path / "l", [tiny_root()])
    made = await build(yard, from_layout(tmp_path / "l"))
    refused = await shell(yard, made, "touch /usr/local/x 2>&1 || true")
    assert "Permission denied" in refused
    told = await shell(
        yard,
        made,
        "id -u; touch /usr/local/x && chown 1000:1000 /usr/local/x && chmod 4755 /usr/local/x;"
        " chroot / id -u; grep -E '^(Cap|NoNew|Seccomp:)' /proc/self/status;"
        " mount -t tmpfs x /mnt 2>&1; mkdir /mnt && echo $HOME; ls -ln /usr/local/x",
        as_root=True,
    )
    lines = told.splitlines()
    assert lines[:2] == ["0", "0"]
    assert "CapEff:\t00000000800400fb" in lines
    assert "CapBnd:\t00000000800400fb" in lines
    assert "NoNewPrivs:\t1" in lines
    assert "Seccomp:\t2" in lines
    assert any("permission denied" in line for line in lines)
    assert "/root" in lines
    assert lines[-1].startswith("-rwsr-xr-x    1 1000     1000")


async def test_a_command_as_root_is_refused_when_the_image_is_host(yard: Station) -> None:
    """This machine's own programs are nobody's to change from inside."""
    made = await yard.snapshot_of(None)
    row = await yard.workspaces.create(made.id)
    with pytest.raises(ConflictError, match="its image is `host`"):
        await yard.workspaces.exec(row.id, ["id"], as_root=True)
    await yard.workspaces.delete(row.id)


async def test_what_root_wrote_stays_when_the_workspace_starts_again_and_is_forked(
    yard: Station, tmp_path: Path
) -> None:
    """A snapshot of a workspace with an image holds the changes of its root, too."""
    write_layout(tmp_path / "l", [tiny_root()])
    made = await build(yard, from_layout(tmp_path / "l"))
    row = await yard.workspaces.create(made.id)
    await yard.workspaces.exec(
        row.id,
        ["/bin/sh", "-c", "echo tool > /usr/local/tool; rm /bin/vi; rm -r /tmp/*"],
        as_root=True,
    )
    await yard.workspaces.stop(row.id)
    taken = await yard.snapshots.create("installed", row.id)
    assert await shell(yard, taken, "cat /usr/local/tool; ls /bin | grep -c '^vi$' || true") == (
        "tool\n0\n"
    )
    await yard.workspaces.delete(row.id)


async def test_nothing_starts_in_the_images_stead_when_it_holds_no_shell(
    yard: Station, tmp_path: Path
) -> None:
    """The container's first process is our own; the command says itself what is missing."""
    write_layout(tmp_path / "l", [layer(folder("etc"), Entry(name="etc/x", content=b"1"))])
    made = await build(yard, from_layout(tmp_path / "l"))
    row = await yard.workspaces.create(made.id)
    done = await yard.workspaces.exec(row.id, ["/bin/sh", "-c", "true"])
    assert done.result is not None
    assert done.result.detail == "cannot execute /bin/sh: no such file or directory"
    await yard.workspaces.delete(row.id)


async def test_deletions_of_an_upper_layer_are_seen_when_layers_are_stacked(
    yard: Station, tmp_path: Path
) -> None:
    """Whiteouts and opaque folders become overlayfs's own."""
    lower = tiny_root(
        folder("a"), Entry(name="a/gone", content=b"1"), Entry(name="a/kept", content=b"2"),
        folder("b"), Entry(name="b/old", content=b"3"),
        folder("c"), Entry(name="c/old", content=b"4"),
    )  # fmt: skip
    upper = layer(
        Entry(name="a/.wh.gone"), folder("b"), Entry(name="b/new", content=b"5"),
        Entry(name="b/.wh..wh..opq"), Entry(name=".wh.c"), folder("c"),
        Entry(name="c/new", content=b"6"),
    )  # fmt: skip
    write_layout(tmp_path / "l", [lower, upper])
    made = await build(yard, from_layout(tmp_path / "l"))
    assert await shell(yard, made, "cd /; ls a b c") == "a:\nkept\n\nb:\nnew\n\nc:\nnew\n"


@pytest.mark.parametrize("compression", ["gzip", "zstd", ""])
async def test_a_layer_is_unpacked_whatever_it_is_compressed_by(
    yard: Station, tmp_path: Path, compression: str
) -> None:
    """The three forms that images have."""
    write_layout(tmp_path / "l", [tiny_root()], compression=compression)
    made = await build(yard, from_layout(tmp_path / "l"))
    assert await shell(yard, made, "echo $((6 * 7))") == "42\n"


@pytest.mark.parametrize("form", ["oci-archive", "docker-archive"])
async def test_an_archive_is_taken_when_docker_or_skopeo_saved_it(
    yard: Station, tmp_path: Path, form: str
) -> None:
    """Both kinds of tar file, told apart by trying."""
    write_layout(tmp_path / "l", [tiny_root()])
    target = f"{form}:{tmp_path / 'image.tar'}:tiny:1"
    subprocess.run(
        ["skopeo", "copy", "-q", f"oci:{tmp_path / 'l'}", target], check=True, capture_output=True
    )
    source = ImageSource(kind=ImageKind.ARCHIVE, location=str(tmp_path / "image.tar"))
    made = await build(yard, source)
    assert await shell(yard, made, "echo yes") == "yes\n"


async def test_the_second_build_fetches_no_layer_when_the_image_is_here(
    yard: Station, tmp_path: Path
) -> None:
    """A digest that is known costs three small documents, also after a failed build."""
    write_layout(tmp_path / "l", [tiny_root(), layer(Entry(name="x", content=b"1"))])
    with registry(tmp_path / "r") as server:
        reference = server.push(tmp_path / "l", "team/tiny:1")
        first = await build(yard, from_registry(reference))
        fetched = server.blobs()
        second = await build(yard, from_registry(reference))
        again = server.blobs()[len(fetched) :]
        assert first.layers[1:] == second.layers[1:]
        assert len(fetched) >= 3
        assert len(again) <= 1, "the configuration is looked up, and nothing else is fetched"
        assert "2 layers, all here: nothing is fetched" in log_of(yard)
        assert first.environment.image is not None


async def test_only_the_missing_layer_is_fetched_when_two_images_share_one(
    yard: Station, tmp_path: Path
) -> None:
    """One base under two images lies on disk once, and comes over the network once."""
    base = tiny_root()
    write_layout(tmp_path / "l", [base, layer(Entry(name="one", content=b"1"))])
    write_layout(tmp_path / "m", [base, layer(Entry(name="two", content=b"2"))])
    with registry(tmp_path / "r") as server:
        references = [server.push(tmp_path / "l", "one:1"), server.push(tmp_path / "m", "two:1")]
        first = await build(yard, from_registry(references[0]), name="one")
        before = len(server.blobs())
        second = await build(yard, from_registry(references[1]), name="two")
        fetched = set(server.blobs()[before:])
    assert first.layers[-1] == second.layers[-1]
    assert len(fetched) == 2, "configuration and one layer"
    assert "fetching 1 of 2 layers" in log_of(yard, "two")
    assert await shell(yard, second, "cat /two; ls /one 2>&1 || true") == (
        "2ls: /one: No such file or directory\n"
    )


def with_secret(yard: Station, value: str) -> Templates:
    """Give templates that know one secret."""
    images = Images(yard.workspaces, SystemClock(), secret=lambda _: value)
    return Templates(yard.snapshots, SystemClock(), None, images, secret=lambda _: value)


async def test_a_private_image_is_pulled_when_its_secret_is_set_and_nothing_keeps_it(
    yard: Station, tmp_path: Path
) -> None:
    """Credentials reach skopeo by a file of its own; no log, layer or journal has them."""
    write_layout(tmp_path / "l", [tiny_root()])
    with registry(tmp_path / "r", is_private=True) as server:
        reference = server.push(tmp_path / "l", "tiny:1")
        yard.templates = with_secret(yard, PASSWORD)
        made = await build(yard, from_registry(reference, secret="reg"))  # noqa: S106 - its name
        assert await shell(yard, made, "echo yes") == "yes\n"
    found = subprocess.run(
        ["grep", "-rlaF", PASSWORD, str(yard.layout.home)], capture_output=True, check=False
    )
    assert found.stdout == b""
    assert not list(yard.layout.run.glob("image-*"))


async def test_a_private_image_is_refused_when_the_secret_is_wrong(
    yard: Station, tmp_path: Path
) -> None:
    """The error names the image and what to do; the password is in neither."""
    write_layout(tmp_path / "l", [tiny_root()])
    with registry(tmp_path / "r", is_private=True) as server:
        reference = server.push(tmp_path / "l", "tiny:1")
        yard.templates = with_secret(yard, "wrong-password")
        with pytest.raises(WorkspaceError, match=f"cannot pull image {reference}") as told:
            await build(yard, from_registry(reference, secret="reg"))  # noqa: S106 - its name
        assert told.value.hint is not None
        assert "secret" in told.value.hint
        assert "wrong-password" not in f"{told.value} {log_of(yard)}"
    assert str(yard.templates.get("t").trouble).startswith("pull: ")


async def test_a_private_image_is_refused_when_its_secret_is_missing(yard: Station) -> None:
    """The command that sets it is named."""
    images = Images(yard.workspaces, SystemClock())
    with pytest.raises(NotFoundError, match="there is no secret reg") as told:
        await images.obtain(
            from_registry("127.0.0.1:1/x:1", secret="reg"),  # noqa: S106 - its name
            lambda _: None,
        )
    assert told.value.hint == "Set it with `forkyard secret set reg`."


async def test_an_image_is_refused_when_there_is_no_such_tag(yard: Station, tmp_path: Path) -> None:
    """The registry's own words are told."""
    write_layout(tmp_path / "l", [tiny_root()])
    with registry(tmp_path / "r") as server:
        reference = server.push(tmp_path / "l", "tiny:1")[:-1] + "2"
        with pytest.raises(WorkspaceError, match=r"tiny:2: .*manifest unknown"):
            await build(yard, from_registry(reference))


async def test_an_image_is_refused_when_its_digest_is_another(
    yard: Station, tmp_path: Path
) -> None:
    """A reference by digest means that one and no other."""
    write_layout(tmp_path / "l", [tiny_root()])
    with registry(tmp_path / "r") as server:
        reference = server.push(tmp_path / "l", "tiny:1")
        with pytest.raises(WorkspaceError, match="cannot pull image"):
            await build(yard, from_registry(f"{reference}@sha256:{'0' * 64}"))


async def test_an_image_is_refused_when_the_tool_for_it_is_absent(
    yard: Station, tmp_path: Path
) -> None:
    """The package to install is named."""
    (tmp_path / "empty").mkdir()
    images = Images(yard.workspaces, SystemClock(), search_path=str(tmp_path))
    with pytest.raises(WorkspaceError, match="skopeo is not installed") as told:
        await images.obtain(from_registry("127.0.0.1:1/x:1"), lambda _: None)
    assert told.value.hint == "Install the package skopeo."


async def test_an_image_is_refused_when_it_is_for_another_machine(
    yard: Station, tmp_path: Path
) -> None:
    """Nothing is emulated."""
    write_layout(tmp_path / "l", [tiny_root()], config={"architecture": "s390x"})
    with pytest.raises(WorkspaceError, match="it is for 'linux/s390x', this machine is linux/"):
        await build(yard, from_layout(tmp_path / "l"))


async def test_nothing_is_left_when_an_image_cannot_be_used(yard: Station, tmp_path: Path) -> None:
    """A failed pull leaves neither rows nor layers nor folders."""
    write_layout(tmp_path / "l", [tiny_root(), layer(Entry(name="../x", content=b"1"))])
    with pytest.raises(ForkyardError, match="leads out of the layer"):
        await build(yard, from_layout(tmp_path / "l"))
    assert yard.journal.state.images == {}
    assert yard.left()["layers"] == []
    assert not list(yard.layout.run.glob("image-*"))


async def test_an_images_layers_stay_when_its_only_snapshot_is_deleted(
    yard: Station, tmp_path: Path
) -> None:
    """They wait for the next build, until they are collected."""
    write_layout(tmp_path / "l", [tiny_root()])
    made = await build(yard, from_layout(tmp_path / "l"))
    await yard.templates.delete("t")
    assert yard.left()["layers"] == [made.layers[-1]]
    (image,) = yard.journal.state.images.values()
    assert image.state is ImageState.READY
    images = Images(yard.workspaces, SystemClock())
    assert images.unneeded("9999") == (image,)
    await images.forget(image)
    assert yard.left()["layers"] == []


async def test_a_repository_is_laid_on_the_image_when_a_template_has_both(
    yard: Station, tmp_path: Path, home: Path
) -> None:
    """The recorded base is the repository's, whatever the image holds below the workspace."""
    from forkyard.model.workspace import RepositorySource  # noqa: PLC0415 - of this test alone

    repository = make_repository(home.parent / "r")
    root = tiny_root(folder("workspace"), folder("workspace/repo"), Entry(name="workspace/repo/z"))
    write_layout(tmp_path / "l", [root])
    made = await build(
        yard,
        from_layout(tmp_path / "l"),
        repository=RepositorySource(path=str(repository), include_uncommitted=True),
    )
    assert made.base is not None
    assert made.base.commit is not None
    assert await shell(yard, made, "ls /workspace/repo") == "a.txt\npkg\n"
    sealed = await yard.snapshots.sealed(made)
    assert sealed.state.value == "ready"
    assert all(
        one.state is WorkspaceState.DELETED for one in yard.journal.state.workspaces.values()
    )
