"""Images from a Containerfile, built by this machine's buildah inside a sandbox of ours.

A RUN step is root of whatever builds it, so nothing is built on the host. The builder's sandbox is
one like every other (own namespaces and id range, this machine's programs read-only, the network
that the build phase has), but for root of its user namespace, who may mount there. What it leaves
is a folder in OCI layout, read as a stranger's. Base images are fetched before, outside, like any
other image, and laid beside the context: so no RUN step ever shares a sandbox with a login.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import forkyard
from forkyard.base.process import run_async
from forkyard.errors import ConfigError, NotFoundError, WorkspaceError
from forkyard.model.execution import StopReason
from forkyard.model.ids import LayerId, SnapshotId, WorkspaceId, new_layer_id
from forkyard.model.workspace import (
    WORKSPACE_ROOT,
    Environment,
    ImageSource,
    Limits,
    NetworkPolicy,
)
from forkyard.shim.ids import STORAGE_FIRST_ID
from forkyard.workspace.image_layout import OciLayout
from forkyard.workspace.image_pull import reason_of, require
from forkyard.workspace.trusted_git import last_words
from forkyard.workspace.workspaces import Origin, Workspaces

BUILD_SECONDS = 4 * 3600.0
COPY_SECONDS = 3600.0
FILE_BYTES = 1024**2
BASES_MOST = 32
OUT = "out"
_NAMES = ("Containerfile", "Dockerfile")
_LOG_BYTES = 64 * 1024
_OUTPUT_BYTES = 64 * 1024**2
_POLICY = '{"default": [{"type": "insecureAcceptAnything"}]}'
_REGISTRIES = 'unqualified-search-registries = ["docker.io"]\nshort-name-mode = "permissive"\n'
_FROM = re.compile(r"\s*FROM\s+(?:--platform=\S+\s+)?(\S+)(?:\s+AS\s+(\S+))?\s*", re.IGNORECASE)
_ARG = re.compile(r"\s*ARG\s+([A-Za-z_]\w*)=(\"[^\"]*\"|'[^']*'|\S*)\s*", re.IGNORECASE)
_COPY_FROM = re.compile(r"\s*(?:COPY|ADD|RUN)\s.*?(?:--from=|[,=]from=)([^\s,]+)", re.IGNORECASE)
_VARIABLE = re.compile(r"\$(?:\{([A-Za-z_]\w*)(?::?-([^}]*))?\}|([A-Za-z_]\w*))")

_BUILD = """
set -eu
cd /workspace
mkdir -p home tmp store/run
export HOME=/workspace/home TMPDIR=/workspace/tmp BUILDAH_ISOLATION=chroot
export _CONTAINERS_USERNS_CONFIGURED=done CONTAINERS_REGISTRIES_CONF=/workspace/registries.conf
b() {
    buildah --root /workspace/store/root --runroot /workspace/store/run --storage-driver vfs \\
        --registries-conf /workspace/registries.conf "$@"
}
number=0
while read -r name; do
    id=$(b pull -q --signature-policy /workspace/policy.json "oci:/workspace/bases/$number:image")
    b tag "$id" "$name"
    number=$((number + 1))
done < bases.txt
b bud --isolation chroot --network host --format oci --pull=false --layers=false \\
    --signature-policy /workspace/policy.json --iidfile iid -f /workspace/Containerfile \\
    /workspace/context
b push -q --signature-policy /workspace/policy.json "$(cat iid)" oci:/workspace/out:image
rm -rf store tmp
"""

Say = Callable[[str], None]
Fetch = Callable[[str, Path], Awaitable[None]]
"""Brings the image of a reference into a folder that does not exist yet, as an OCI layout."""


@dataclass(slots=True, kw_only=True)
class ImageBuilder:
    """Builds images in one state directory."""

    workspaces: Workspaces
    fetch: Fetch
    search_path: str

    async def build(
        self,
        source: ImageSource,
        say: Say,
        *,
        network: NetworkPolicy,
        limits: Limits,
        owner: str,
        snapshot: SnapshotId,
    ) -> tuple[WorkspaceId, OciLayout]:
        """Build an image; the caller reads the layout, then deletes the workspace that holds it.

        Args:
            source: The context, and the file if it is not the context's own.
            say: Takes sentences for the build log.
            network: What RUN steps can reach: `open` or `none`.
            limits: Of the sandbox.
            owner: The template: what an earlier server left goes with its failed build.
            snapshot: For the workspace's row.

        Raises:
            UserError: The context or file cannot be had.
            WorkspaceError: A step failed.
        """
        what = f"build image {source.location}"
        require("buildah", self.search_path, what)
        if network not in (NetworkPolicy.OPEN, NetworkPolicy.NONE):
            raise ConfigError(
                f"cannot {what}: its steps can have network open or none, not {network}",
                hint="Write `network: {build: none}` or leave it out.",
            )
        text = await asyncio.to_thread(_read_file, source, what, self.workspaces.layout.home)
        layer = new_layer_id()
        row = await self.workspaces.add(
            Origin(
                snapshot=snapshot,
                layers=(layer,),
                environment=Environment(is_builder=True),
                limits=limits,
            ),
            display_name=f"building {source.location}",
            ephemeral=True,
            network=network,
            owner=owner,
        )
        try:
            await self._lay(source, text, layer, what, say)
            reach = "open" if network is NetworkPolicy.OPEN else "nothing"
            say(f"building {source.location} in a sandbox of its own; its steps reach: {reach}")
            await self._run(row.id, what, say)
            await self.workspaces.stop(row.id)
            try:
                layout = OciLayout.open_beneath(
                    self.workspaces.layout.upper(row.id), f"{WORKSPACE_ROOT.lstrip('/')}/{OUT}"
                )
            except OSError as error:
                raise WorkspaceError(f"cannot {what}: it left no image") from error
        except BaseException:
            await self.workspaces.delete(row.id)
            raise
        return row.id, layout

    async def _lay(
        self, source: ImageSource, text: str, layer: LayerId, what: str, say: Say
    ) -> None:
        """Make the layer that the builder's workspace stands on."""
        layers = self.workspaces.layers
        root = layers.start(layer) / WORKSPACE_ROOT.lstrip("/")
        root.mkdir(mode=0o755)
        context = root / "context"
        context.mkdir(mode=0o755)
        await _copy(Path(source.location), context, what, self.workspaces.layout.home, say)
        bases = base_references(text)
        (root / "bases").mkdir(mode=0o755)
        for number, reference in enumerate(bases):
            say(f"base image {reference}")
            await self.fetch(reference, root / "bases" / str(number))
        written = {
            "Containerfile": text,
            "bases.txt": "".join(f"{_full_name(one)}\n" for one in bases),
            "policy.json": _POLICY,
            "registries.conf": _REGISTRIES,
        }
        for name, content in written.items():
            (root / name).write_text(content, encoding="utf-8", errors="surrogateescape")
        await asyncio.to_thread(_give_to_root, root)
        await layers.finish(layer)

    async def _run(self, workspace: WorkspaceId, what: str, say: Say) -> None:
        done = await self.workspaces.exec(
            workspace,
            ["/bin/sh", "-c", _BUILD],
            timeout_seconds=BUILD_SECONDS,
            keep_background=False,
            output_bytes=_OUTPUT_BYTES,
            as_root=True,
        )
        place = self.workspaces.layout.exec(workspace, done.id)
        output = {name: _tail(place / name) for name in ("stdout", "stderr")}
        for content in output.values():
            for line in content.decode(errors="replace").splitlines():
                say(line)
        result = done.result
        if result is None or result.stop_reason is not StopReason.EXITED or result.exit_code != 0:
            lines = [line for line in output["stderr"].splitlines() if line.strip()]
            reason = reason_of(lines[-1] if lines else b"").removeprefix("Error: ")
            if result is not None and result.stop_reason is not StopReason.EXITED:
                reason = f"{result.stop_reason}: {result.detail}"
            raise WorkspaceError(
                f"cannot {what}: {reason}",
                hint="Read the build's log: each step and what it printed is there.",
            )


def base_references(text: str) -> tuple[str, ...]:
    """List the images that a Containerfile starts from or copies from, as it names them.

    What its arguments would say otherwise is not known here: defaults count. A name that is not
    found this way is fetched by the build itself, if its network reaches that far.
    """
    arguments: dict[str, str] = {}
    stages: set[str] = set()
    found: dict[str, None] = {}
    has_begun = False
    for line in re.sub(r"\\\s*\n", " ", text).split("\n"):
        argument = _ARG.fullmatch(line)
        if argument is not None and not has_begun:
            arguments[argument[1]] = _filled(argument[2].strip("\"'"), arguments)
        start = _FROM.fullmatch(line)
        copied = _COPY_FROM.match(line)
        name = ""
        if start is not None:
            has_begun = True
            name = _filled(start[1], arguments)
        elif copied is not None:
            name = copied[1]
        is_image = name and name != "scratch" and name.lower() not in stages and not name.isdigit()
        if is_image and re.fullmatch(r"[A-Za-z0-9.:/@_-]+", name):
            found[name] = None
        if start is not None and start[2]:
            stages.add(start[2].lower())
    return tuple(found)[:BASES_MOST]


def _filled(text: str, arguments: dict[str, str]) -> str:
    return _VARIABLE.sub(lambda match: arguments.get(match[1] or match[3], match[2] or ""), text)


def _full_name(reference: str) -> str:
    """Give a reference as buildah looks it up: with registry and tag."""
    host, slash, _ = reference.partition("/")
    if not slash:
        reference = f"docker.io/library/{reference}"
    elif not ("." in host or ":" in host or host == "localhost"):
        reference = f"docker.io/{reference}"
    name, _, digest = reference.partition("@")
    if ":" not in name.rpartition("/")[2] and not digest:
        name = f"{name}:latest"
    return name if not digest else f"{name}@{digest}"


def _read_file(source: ImageSource, what: str, state: Path) -> str:
    context = Path(source.location)
    if context.is_dir() and state.resolve() in (context.resolve(), *context.resolve().parents):
        raise ConfigError(
            f"cannot {what}: its context is Forkyard's own state", hint="Give another folder."
        )
    places = [Path(source.containerfile)] if source.containerfile else []
    places = places or [context / name for name in _NAMES]
    if not context.is_dir():
        raise NotFoundError(
            f"cannot {what}: there is no such folder", hint="Give the absolute path of the context."
        )
    for place in places:
        try:
            with place.open("rb") as file:
                content = file.read(FILE_BYTES + 1)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise NotFoundError(f"cannot {what}: {place}: {error.strerror}") from error
        if len(content) > FILE_BYTES:
            raise ConfigError(f"cannot {what}: {place} is larger than {FILE_BYTES} bytes")
        return content.decode("utf-8", "surrogateescape")
    raise NotFoundError(
        f"cannot {what}: there is no {' or '.join(str(one) for one in places)}",
        hint="Name the file with `containerfile`.",
    )


async def _copy(source: Path, target: Path, what: str, state: Path, say: Say) -> None:
    # Every build step reads all of the context: our own state, keys among it, is never of it.
    home = state.stat()  # noqa: ASYNC240 - one system call
    asked = {
        "source": str(source),
        "target": str(target),
        "owner": STORAGE_FIRST_ID,
        "skip": [(home.st_dev, home.st_ino)],
    }
    package = Path(forkyard.__file__).parents[1]
    done = await run_async(
        [sys.executable, "-P", "-m", "forkyard.workspace.tree_copy"],
        variables={"PYTHONPATH": str(package), "PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8"},
        stdin=json.dumps(asked).encode(),
        timeout_seconds=COPY_SECONDS,
    )
    if not done.succeeded:
        reason = last_words(done.stderr)
        raise WorkspaceError(f"cannot {what}: its context cannot be copied: {reason}")
    report = json.loads(done.stdout)
    if report["error"] is not None:
        raise WorkspaceError(f"cannot {what}: its context cannot be copied: {report['error']}")
    for path, why in report["notes"]:
        say(f"not taken: {path}: {why}")


def _give_to_root(root: Path) -> None:
    """Give all of it to the sandbox's root, links themselves included."""
    os.chown(root, STORAGE_FIRST_ID, STORAGE_FIRST_ID)
    for _, folders, files, descriptor in os.fwalk(root, follow_symlinks=False):
        for name in (*folders, *files):
            os.chown(
                name, STORAGE_FIRST_ID, STORAGE_FIRST_ID, dir_fd=descriptor, follow_symlinks=False
            )


def _tail(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _LOG_BYTES))
            return file.read()
    except FileNotFoundError:
        return b""
