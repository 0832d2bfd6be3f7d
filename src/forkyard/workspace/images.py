"""Images other than `host`: brought here, checked, and made into layers that workspaces stand on.

An image is known by its manifest's digest. Its row in the journal names its layers before they
exist; layers are named by their content, so two images that share one have it once, and a second
build fetches nothing. Who needs an image is read from the journal; the others go with `gc`.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from forkyard.base.clock import Clock
from forkyard.base.durable import failpoint
from forkyard.base.words import counted
from forkyard.errors import InternalError, NotFoundError, WorkspaceError
from forkyard.model.ids import ImageId, SnapshotId, image_id
from forkyard.model.image import Image, ImageState
from forkyard.model.workspace import (
    ImageKind,
    ImageSource,
    Limits,
    NetworkPolicy,
    SnapshotState,
    WorkspaceState,
)
from forkyard.store.journal import Journal
from forkyard.workspace.image_build import ImageBuilder
from forkyard.workspace.image_layers import ImageLayers, UnpackLimits
from forkyard.workspace.image_layout import OciLayout
from forkyard.workspace.image_manifest import Blob, Configuration, Manifest, Unusable
from forkyard.workspace.image_pull import (
    Reference,
    RegistryImage,
    Skopeo,
    from_archive,
    login,
)
from forkyard.workspace.workspaces import Workspaces

SCRATCH_PREFIX = "image-"
SEARCH_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

_LIVE = (SnapshotState.PENDING, SnapshotState.READY)

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Building:
    """For whom an image is built, and what its steps may use."""

    owner: str
    snapshot: SnapshotId
    network: NetworkPolicy
    limits: Limits


class Images:
    """The images of one state directory; the only one to change their rows."""

    def __init__(
        self,
        workspaces: Workspaces,
        clock: Clock,
        *,
        secret: Callable[[str], str | None] = lambda _: None,
        variables: Mapping[str, str] | None = None,
        search_path: str = SEARCH_PATH,
        limits: UnpackLimits | None = None,
    ) -> None:
        """Know what the journal has; nothing is looked for yet.

        Args:
            workspaces: Of the same state directory; images are built in one.
            clock: For the rows.
            secret: Gives a secret's value by name.
            variables: What our environment says of proxies and certificates.
            search_path: PATH that skopeo and others are looked for in.
            limits: Of one layer.
        """
        self._journal: Journal = workspaces.journal
        self._layout = workspaces.layout
        self._layers = workspaces.layers
        self._workspaces = workspaces
        self._clock = clock
        self._secret = secret
        self._variables = dict(variables or {})
        self._search_path = search_path
        self._unpacker = ImageLayers(
            layout=self._layout,
            layers=self._layers,
            search_path=search_path,
            limits=limits or UnpackLimits(),
        )
        self._builder = ImageBuilder(
            workspaces=workspaces, fetch=self._fetch_base, search_path=search_path
        )
        self._locks: dict[ImageId, asyncio.Lock] = {}

    async def obtain(
        self, source: ImageSource, say: Say, building: Building | None = None
    ) -> Image:
        """Have an image's layers here.

        Args:
            source: Where it comes from.
            say: Takes sentences for the build log.
            building: For whom, and with what, where it has to be built.

        Returns:
            Its row, ready.

        Raises:
            UserError: It cannot be had as asked: no such file or secret, no such reference.
            WorkspaceError: It could not be had, or is not what it says.

        Cancellation:
            Nothing goes on; layers that were whole by then are kept.

        Durability:
            Its layers and its row are on disk when this returns.
        """
        is_built = source.kind is ImageKind.BUILD
        what = f"{'build' if is_built else 'pull'} image {source.location}"
        try:
            with self._scratch() as scratch:
                match source.kind:
                    case ImageKind.REGISTRY:
                        return await self._from_registry(source, what, scratch, say)
                    case ImageKind.LAYOUT:
                        return await self._from_layout(source, Path(source.location), scratch, say)
                    case ImageKind.ARCHIVE:
                        skopeo = self._skopeo(what, scratch)
                        skopeo.prepare(None, None)
                        await from_archive(skopeo, Path(source.location))
                        return await self._from_layout(source, skopeo.layout, scratch, say)
                    case ImageKind.BUILD if building is not None:
                        return await self._built(source, building, scratch, say)
                    case ImageKind.BUILD | ImageKind.HOST:
                        raise InternalError(f"cannot {what}: nobody said what for")
        except Unusable as error:
            raise WorkspaceError(
                f"cannot {what}: {error}", hint="Use an image that you trust and that is whole."
            ) from error

    def _skopeo(self, what: str, scratch: Path) -> Skopeo:
        return Skopeo(
            what=what, scratch=scratch, search_path=self._search_path, variables=self._variables
        )

    async def _from_registry(
        self, source: ImageSource, what: str, scratch: Path, say: Say
    ) -> Image:
        reference = Reference.parse(source.location)
        skopeo = self._skopeo(what, scratch)
        skopeo.prepare(reference.registry, login(source.credentials, self._secret, what))
        if reference.is_on_loopback:
            say(
                f"registry {reference.registry} is this machine's own: its certificate is not asked"
            )
        remote = RegistryImage(skopeo=skopeo, reference=reference)
        manifest, config = await remote.image()
        say(f"image {source.location} is {manifest.digest}")
        async with self._claimed(source, manifest, config):
            present = [
                blob
                for blob, diff_id in zip(manifest.layers, config.diff_ids, strict=True)
                if self._unpacker.is_here(diff_id)
            ]
            if len(present) < len(manifest.layers):
                missing = [blob for blob in manifest.layers if blob not in present]
                size = sum(blob.size_bytes for blob in missing) / 1024**2
                layers = counted(len(manifest.layers), "layer")
                say(f"fetching {len(missing)} of {layers}, {size:.1f} MiB")
                await remote.fetch(manifest, present)
                layout = OciLayout.open(skopeo.layout)
                try:
                    fetched, theirs = layout.image()
                    if theirs.diff_ids != config.diff_ids:
                        raise Unusable("what was fetched has other layers than what was looked up")
                    await self._unpack(fetched.layers, config, layout, scratch, say)
                finally:
                    layout.close()
            else:
                say(f"{counted(len(present), 'layer')}, all here: nothing is fetched")
        return self._journal.state.images[image_id(manifest.digest)]

    async def _from_layout(
        self, source: ImageSource, folder: Path, scratch: Path, say: Say
    ) -> Image:
        try:
            layout = OciLayout.open(folder)
        except OSError as error:
            raise NotFoundError(
                f"cannot pull image {source.location}: {error.strerror or error}",
                hint="Give the absolute path of a folder in OCI layout (it holds index.json).",
            ) from error
        try:
            manifest, config = layout.image()
            return await self.take(source, manifest, config, layout, scratch, say)
        finally:
            layout.close()

    async def _built(
        self, source: ImageSource, building: Building, scratch: Path, say: Say
    ) -> Image:
        workspace, layout = await self._builder.build(
            source,
            say,
            network=building.network,
            limits=building.limits,
            owner=building.owner,
            snapshot=building.snapshot,
        )
        try:
            manifest, config = layout.image()
            return await self.take(source, manifest, config, layout, scratch, say)
        finally:
            layout.close()
            await self._workspaces.delete(workspace)

    async def _fetch_base(self, location: str, target: Path) -> None:
        """Bring a base image into a folder, for a build to start from."""
        reference = Reference.parse(location)
        what = f"pull base image {location}"
        with self._scratch() as scratch:
            skopeo = self._skopeo(what, scratch)
            skopeo.prepare(reference.registry, None)
            remote = RegistryImage(skopeo=skopeo, reference=reference)
            try:
                manifest, _ = await remote.image()
            except Unusable as error:
                raise WorkspaceError(f"cannot {what}: {error}") from error
            await remote.fetch(manifest, [])
            await asyncio.to_thread(shutil.move, skopeo.layout, target)

    async def take(
        self,
        source: ImageSource,
        manifest: Manifest,
        config: Configuration,
        layout: OciLayout,
        scratch: Path,
        say: Say,
    ) -> Image:
        """Take an image that lies in a layout."""
        say(f"image {source.location} is {manifest.digest}")
        async with self._claimed(source, manifest, config):
            await self._unpack(manifest.layers, config, layout, scratch, say)
        return self._journal.state.images[image_id(manifest.digest)]

    @asynccontextmanager
    async def _claimed(
        self, source: ImageSource, manifest: Manifest, config: Configuration
    ) -> AsyncIterator[None]:
        """Have it to oneself, named in the journal before; afterwards it is here, or forgotten."""
        identity = image_id(manifest.digest)
        async with self._locks.setdefault(identity, asyncio.Lock()):
            row = await self._claim(identity, source, manifest.digest, config)
            try:
                yield
            except BaseException:
                if row.state is ImageState.PENDING:
                    await self.forget(row)
                raise
            if row.state is ImageState.PENDING:
                ready = replace(row, state=ImageState.READY)
                await self._journal.append(ready, "here", expect=row)

    async def _claim(
        self, identity: ImageId, source: ImageSource, digest: str, config: Configuration
    ) -> Image:
        known = self._journal.state.images.get(identity)
        row = Image(
            id=identity,
            digest=digest,
            reference=source.location,
            state=ImageState.PENDING if known is None else known.state,
            # One tar stream may be several layers of an image: overlayfs takes a folder once.
            layers=tuple(
                dict.fromkeys(self._unpacker.name(one) for one in reversed(config.diff_ids))
            ),
            used_at=self._clock.now(),
            variables=config.variables,
        )
        # Without an expectation: one that is gone and comes back is known to the journal alone.
        await self._journal.append(row, "wanted")
        failpoint("I01")
        return row

    async def _unpack(
        self,
        blobs: tuple[Blob, ...],
        config: Configuration,
        layout: OciLayout,
        scratch: Path,
        say: Say,
    ) -> None:
        named = tuple(zip(blobs, config.diff_ids, strict=True))
        await self._unpacker.unpack(named, layout, scratch, say)

    @contextmanager
    def _scratch(self) -> Iterator[Path]:
        """Give a folder that is gone afterwards; what a crash leaves, the next server removes."""
        path = Path(tempfile.mkdtemp(prefix=SCRATCH_PREFIX, dir=self._layout.run))
        try:
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)

    async def recover(self) -> None:
        """Forget images that an earlier server did not finish; a second time changes nothing."""
        for row in list(self._journal.state.images.values()):
            if row.state is ImageState.PENDING:
                await self.forget(row)

    async def forget(self, row: Image) -> None:
        """Let an image go, and the layers that nobody else needs."""
        await self._journal.append(replace(row, state=ImageState.GONE), "gone", expect=row)
        self._layers.remove_unneeded(row.layers, self._journal.state)
        await self._layers.empty_trash()

    def unneeded(self, older_than: str) -> tuple[Image, ...]:
        """List the images that no snapshot or workspace stands on, last used before a time."""
        state = self._journal.state
        environments = [
            *(one.environment for one in state.snapshots.values() if one.state in _LIVE),
            *(
                one.environment
                for one in state.workspaces.values()
                if one.state is not WorkspaceState.DELETED
            ),
        ]
        used = {one.image.digest for one in environments if one.image is not None}
        return tuple(
            row
            for row in state.images.values()
            if row.digest not in used and row.used_at < older_than
        )
