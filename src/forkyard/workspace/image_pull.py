"""Images from a registry or an archive, fetched by skopeo as a user without any right.

skopeo reads a stranger's bytes with the system's own trust (certificates, signature policy,
registries' settings). It sees one folder of ours, at a place that it may enter; credentials lie
there in a file of its own, never among arguments or in an environment, and are gone with it.
"""

from __future__ import annotations

import asyncio
import base64
import ipaddress
import json
import os
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from forkyard.base.process import Finished, run_async
from forkyard.errors import ConfigError, NotFoundError, WorkspaceError
from forkyard.model.workspace import Credentials
from forkyard.shim.ids import PULLER_USER_ID
from forkyard.workspace.image_manifest import (
    DOCUMENT_BYTES,
    Blob,
    Configuration,
    Manifest,
    Unusable,
    choose,
    digest_of,
    read_configuration,
    read_manifest,
)

INSPECT_SECONDS = 300.0
PULL_SECONDS = 4 * 3600.0
KEPT_FREE_BYTES = 1024**3
_PLACE = "/mnt"
_ENTER = 'mount --bind -- "$1" "$2" && shift 2 && cd / && exec "$@"'
_POLICY = Path("/etc/containers/policy.json")
_ANY_POLICY = b'{"default": [{"type": "insecureAcceptAnything"}]}'
_REFERENCE = re.compile(
    r"(?P<name>(?:\[[0-9a-fA-F:]+\](?::\d+)?/)?[A-Za-z0-9][A-Za-z0-9._:/-]*?)"
    r"(?::(?P<tag>[A-Za-z0-9_][A-Za-z0-9._-]{0,127}))?"
    r"(?:@(?P<digest>sha256:[0-9a-f]{64}))?"
)
_MISLEADING = re.compile(r'Error parsing image name "[^"]*": ')
"""skopeo says so of every image that it cannot read."""
_MESSAGE = re.compile(rb'msg="((?:[^"\\]|\\.)*)"')

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """An image's name in a registry, taken apart."""

    name: str
    """Registry and repository."""
    tag: str | None
    digest: str | None

    @classmethod
    def parse(cls, text: str) -> Reference:
        """Take it apart.

        Raises:
            ConfigError: It is no reference.
        """
        found = _REFERENCE.fullmatch(text.removeprefix("docker://"))
        if found is None or len(text) > 512:  # noqa: PLR2004 - longer than any registry takes
            raise ConfigError(
                f"cannot pull image {text[:200]!r}: it is no reference of an image",
                hint="Write NAME:TAG or REGISTRY/NAME:TAG, such as `debian:12`.",
            )
        return cls(name=found["name"], tag=found["tag"], digest=found["digest"])

    @property
    def registry(self) -> str:
        """Host and port; Docker's own where none is named."""
        host, slash, _ = self.name.partition("/")
        is_host = slash and ("." in host or ":" in host or host == "localhost")
        return host if is_host else "docker.io"

    @property
    def is_on_loopback(self) -> bool:
        """Whether it is this machine's own registry: no network lies between."""
        host = self.registry
        host = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
        try:
            return host == "localhost" or ipaddress.ip_address(host).is_loopback
        except ValueError:
            return False

    @property
    def address(self) -> str:
        """As skopeo takes it; a digest makes the tag a comment."""
        if self.digest is not None:
            return f"docker://{self.name}@{self.digest}"
        return f"docker://{self.name}:{self.tag or 'latest'}"

    def at(self, digest: str) -> str:
        """Give the address of one manifest of the repository."""
        return f"docker://{self.name}@{digest}"


@dataclass(slots=True, kw_only=True)
class Skopeo:
    """One use of skopeo, with a folder of its own."""

    what: str
    """For errors: ``pull image NAME``."""
    scratch: Path
    search_path: str
    variables: Mapping[str, str] = field(default_factory=dict)
    """Of our own environment: proxies and certificates."""
    _options: list[str] = field(default_factory=list)

    @property
    def layout(self) -> Path:
        """Where `copy` puts the image."""
        return self.scratch / "layout"

    def prepare(self, registry: str | None, credentials: tuple[str, str] | None) -> None:
        """Make the folder's contents.

        Raises:
            WorkspaceError: skopeo is not installed.
        """
        program = require("skopeo", self.search_path, self.what)
        self._options = [program]
        folders = [self.scratch, self.layout, self.layout / "blobs" / "sha256", self.scratch / "t"]
        for folder in folders:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        folders.append(self.layout / "blobs")
        if not _POLICY.is_file():
            self._write("policy.json", _ANY_POLICY)
            self._options.append(f"--policy={_PLACE}/policy.json")
        if credentials is not None and registry is not None:
            login = base64.b64encode(":".join(credentials).encode()).decode()
            self._write("auth.json", json.dumps({"auths": {registry: {"auth": login}}}).encode())
        if os.geteuid() == 0:
            for path in folders:
                os.chown(path, PULLER_USER_ID, PULLER_USER_ID)

    def _write(self, name: str, content: bytes) -> None:
        path = self.scratch / name
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(path, flags, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            if os.geteuid() == 0:
                os.fchown(file.fileno(), PULLER_USER_ID, PULLER_USER_ID)

    @property
    def _login(self) -> list[str]:
        if (self.scratch / "auth.json").exists():
            return [f"--authfile={_PLACE}/auth.json"]
        # Without one it would look for a person's own.
        return ["--no-creds"]

    async def inspect(self, address: str, *, is_config: bool = False, verify: bool = True) -> bytes:
        """Give a manifest, or the configuration that it names, as it is."""
        options = ["--raw", *self._login, f"--tls-verify={str(verify).lower()}"]
        if is_config:
            options.append("--config")
        done = await self._run(
            ["inspect", *options, address], DOCUMENT_BYTES, seconds=INSPECT_SECONDS
        )
        return done.stdout

    async def copy(
        self, address: str, *, largest_bytes: int, verify: bool = True, is_local: bool = False
    ) -> None:
        """Bring an image into the layout; blobs that lie there already are not fetched."""
        login = [] if is_local else [f"--src-{one.removeprefix('--')}" for one in self._login]
        login = [one.replace("--src-authfile", "--authfile") for one in login]
        if not is_local:
            login.append(f"--src-tls-verify={str(verify).lower()}")
        target = f"oci:{_PLACE}/layout:image"
        await self._run(
            ["copy", "--quiet", *login, address, target], largest_bytes, seconds=PULL_SECONDS
        )

    async def _run(self, arguments: Sequence[str], file_bytes: int, *, seconds: float) -> Finished:
        limits = ["prlimit", f"--fsize={file_bytes + DOCUMENT_BYTES}", "--core=0"]
        argv = [*lowered(self.scratch), *limits, *self._options, *arguments]
        done = await run_async(
            argv,
            variables={
                **self.variables,
                "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
                "LC_ALL": "C.UTF-8",
                "HOME": "/nonexistent",
                "TMPDIR": f"{_PLACE}/t",
            },
            timeout_seconds=seconds,
        )
        if not done.succeeded:
            raise self.refused(reason_of(done.stderr))
        return done

    def refused(self, reason: str) -> WorkspaceError:
        """Give the error of an image that cannot be had."""
        hint = "Look at the reference, and at the registry."
        if re.search(r"unauthorized|denied|authentication required", reason, re.IGNORECASE):
            hint = (
                "Give the registry's `authentication: {http: {username: NAME, password:"
                " {fromSecret: SECRET}}}`, or set that secret anew."
            )
        elif re.search(r"(manifest|name) unknown", reason):
            hint = "Look at the image's name and its tag or digest: the registry has none such."
        elif "certificate" in reason:
            hint = "Add the registry's authority to those that this machine trusts."
        return WorkspaceError(f"cannot {self.what}: {reason}", hint=hint)


@dataclass(slots=True, kw_only=True)
class RegistryImage:
    """An image in a registry: looked up first, and fetched as far as it is missing."""

    skopeo: Skopeo
    reference: Reference

    @property
    def _verify(self) -> bool:
        return not self.reference.is_on_loopback

    async def image(self) -> tuple[Manifest, Configuration]:
        """Look it up: two or three small documents.

        Raises:
            WorkspaceError: The registry does not give it.
            Unusable: It is not what its digests say, or not for this machine.
        """
        content = await self.skopeo.inspect(self.reference.address, verify=self._verify)
        wanted = self.reference.digest
        if wanted is not None and digest_of(content) != wanted:
            raise Unusable(f"its manifest is {digest_of(content)}")
        chosen = choose(content)
        if chosen is not None:
            content = await self.skopeo.inspect(self.reference.at(chosen), verify=self._verify)
            if digest_of(content) != chosen:
                raise Unusable(f"its manifest is {digest_of(content)}, its list says {chosen}")
        manifest = read_manifest(content)
        config = await self.skopeo.inspect(
            self.reference.at(manifest.digest), is_config=True, verify=self._verify
        )
        return manifest, read_configuration(config, manifest)

    async def fetch(self, manifest: Manifest, present: Sequence[Blob]) -> None:
        """Bring its blobs into the layout, but for those whose layers are here.

        Raises:
            WorkspaceError: The registry does not give one.
        """
        blobs = self.skopeo.layout / "blobs" / "sha256"
        for blob in present:
            # An empty file of its length: skopeo takes it for a blob of another image.
            place = blobs / blob.digest.removeprefix("sha256:")
            with place.open("wb") as file:
                file.truncate(blob.size_bytes)
            if os.geteuid() == 0:
                os.chown(place, PULLER_USER_ID, PULLER_USER_ID)
        missing = [blob for blob in manifest.layers if blob not in present]
        total = sum(blob.size_bytes for blob in missing)
        refuse_without_room(self.skopeo.what, self.skopeo.scratch, total)
        await self.skopeo.copy(
            self.reference.at(manifest.digest),
            largest_bytes=max((blob.size_bytes for blob in missing), default=0),
            verify=self._verify,
        )


async def from_archive(skopeo: Skopeo, archive: Path) -> None:
    """Bring the image of a tar file into the layout: of an OCI layout, or of `docker save`.

    Raises:
        NotFoundError: There is no such file.
        WorkspaceError: It holds no image, or several.
    """
    try:
        size = archive.stat().st_size  # noqa: ASYNC240 - one system call
        refuse_without_room(skopeo.what, skopeo.scratch, 3 * size)
        copy = skopeo.scratch / "archive"
        await asyncio.to_thread(shutil.copyfile, archive, copy)
    except OSError as error:
        raise NotFoundError(
            f"cannot {skopeo.what}: {error.strerror or error}",
            hint="Give the absolute path of a file that `docker save` or `skopeo copy` wrote.",
        ) from error
    if os.geteuid() == 0:
        os.chown(copy, PULLER_USER_ID, PULLER_USER_ID)
    copy.chmod(0o400)
    largest = max(KEPT_FREE_BYTES, 20 * size)
    try:
        await skopeo.copy(f"oci-archive:{_PLACE}/archive", largest_bytes=largest, is_local=True)
    except WorkspaceError as first:
        try:
            await skopeo.copy(
                f"docker-archive:{_PLACE}/archive", largest_bytes=largest, is_local=True
            )
        except WorkspaceError as second:
            first_reason, second_reason = (
                one.message.removeprefix(f"cannot {skopeo.what}: ") for one in (first, second)
            )
            raise WorkspaceError(
                f"cannot {skopeo.what}: as an OCI archive: {first_reason}; as one of"
                f" `docker save`: {second_reason}",
                hint="Save one image alone: `docker save -o FILE IMAGE`.",
            ) from second


def require(program: str, search_path: str, what: str) -> str:
    """Find a tool that not every machine has.

    Raises:
        WorkspaceError: It is not installed.
    """
    found = shutil.which(program, path=search_path)
    if found is None:
        raise WorkspaceError(
            f"cannot {what}: {program} is not installed",
            hint=f"Install the package {program}.",
        )
    return found


def login(
    credentials: Credentials | None, secret: Callable[[str], str | None], what: str
) -> tuple[str, str] | None:
    """Give user name and password.

    Raises:
        NotFoundError: There is no such secret.
    """
    if credentials is None:
        return None
    password = secret(credentials.secret)
    if password is None:
        raise NotFoundError(
            f"cannot {what}: there is no secret {credentials.secret}",
            hint=f"Set it with `forkyard secret set {credentials.secret}`.",
        )
    return credentials.username, password


def lowered(place: Path) -> list[str]:
    """Give what runs a command as nobody, with one folder of ours in sight at a place of its own.

    Where we are not root there is nothing to give up, but the folder is shown all the same.
    """
    if os.geteuid() != 0:
        enter = ["unshare", "--user", "--map-current-user", "--mount", "--propagation=private"]
        return [*enter, "--", "/bin/sh", "-c", _ENTER, "sh", str(place), _PLACE]
    user = [f"--reuid={PULLER_USER_ID}", f"--regid={PULLER_USER_ID}", "--clear-groups"]
    nothing = ["--no-new-privs", "--bounding-set=-all", "--inh-caps=-all"]
    return [
        "unshare", "--mount", "--propagation=private", "--",
        "/bin/sh", "-c", _ENTER, "sh", str(place), _PLACE,
        "setpriv", *user, *nothing, "--",
    ]  # fmt: skip


def refuse_without_room(what: str, place: Path, wanted_bytes: int) -> None:
    """Refuse what the disk cannot hold, before it is full.

    Raises:
        WorkspaceError: With both numbers.
    """
    free = shutil.disk_usage(place).free
    if free - KEPT_FREE_BYTES < wanted_bytes:
        raise WorkspaceError(
            f"cannot {what}: {wanted_bytes / 1024**2:.0f} MiB are needed, and"
            f" {free / 1024**2:.0f} MiB are free, of which {KEPT_FREE_BYTES // 1024**2} stay so",
            hint="Free space in the state directory, then build again.",
        )


def reason_of(stderr: bytes) -> str:
    """Take the reason out of what skopeo or buildah printed."""
    messages = _MESSAGE.findall(stderr)
    text = messages[-1].decode(errors="replace") if messages else stderr.decode(errors="replace")
    text = text.replace('\\"', '"').replace("\\n", " ").replace("\\t", " ")
    text = _MISLEADING.sub("", text)
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())[-500:] or (
        "it ended without a word"
    )
