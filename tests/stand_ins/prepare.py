"""What stand-ins need and is heavy to make: once, into .cache, by ./dev before any test.

Only here is anything fetched: Debian's own packages from the mirror that this machine uses, and
the pinned archives of agents by their registries' own clients.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from forkyard.agents.interface import Package
from forkyard.agents.pins import pinned
from forkyard.config import Layout, registry_settings, search_path
from forkyard.workspace.agent_archives import refuse_other
from forkyard.workspace.agent_install import Agents
from real_agents import ARCHIVES, ROOT
from real_agents import fetch as fetch_agents
from stand_ins import authority, image, packages, payments
from stand_ins.hosts import AGENT_SITE, CODE_SITE, DEBIAN_MIRROR, HOSTS, MODULE_PROXY, PACKAGE_SITE

CACHE = ROOT / ".cache" / "stand-ins"
LAUNCHER = Package(
    registry="npm",
    name="@openai/codex",
    version="0.171.0",
    file="openai-codex-0.171.0.tgz",
    sha512="d48385ccbd9783cead2ddc3a903a371a829b91010d8108bb4c8eab944bcdd77d91ee7812c3b48d3884284dc9cacd2659f247fd37d1b29c2c1e4a86856ea93612",
)
"""What `npm install -g` of that name installs; its program is a package of the same version."""
_SITES = ("payments", "packages", "prepare")
_IMAGE = ("image", "authority")


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """Everything that the stand-ins serve."""

    image: Path
    """Holds the registry's storage and the authority's files."""
    sites: Path
    """Holds one folder per web server, named as its host."""

    @property
    def registry(self) -> Path:
        """Give the storage of the registry."""
        return self.image / "registry"

    @property
    def claude(self) -> Path:
        """Give the archive of Claude Code."""
        return archive_of("claude-code")

    @property
    def authority(self) -> Path:
        """Give the certificate of the test authority."""
        return self.image / authority.AUTHORITY

    @property
    def certificate(self) -> tuple[Path, Path]:
        """Give the certificate of all hosts, and its key."""
        return self.image / authority.CERTIFICATE, self.image / authority.KEY


def prepare(say: Callable[[str], None] = lambda _: None) -> Prepared:
    """Give what is prepared, made where it is not there yet or its recipe has changed.

    Args:
        say: Told what takes a while.
    """
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        names = ",".join(one.name for one in HOSTS)
        sites = _once("sites", _fingerprint(names, *_SITES), _make_sites)
        if not _place("image", _fingerprint(names, *_IMAGE)).exists():
            say("making the image that stands in for golang:1.26-bookworm; a minute or two, once")
        made = _once("image", _fingerprint(names, *_IMAGE), _make_image)
    return Prepared(image=made, sites=sites)


def _place(kind: str, fingerprint: str) -> Path:
    return CACHE / f"{kind}-{fingerprint}"


def _once(kind: str, fingerprint: str, make: Callable[[Path, Path], None]) -> Path:
    made = _place(kind, fingerprint)
    if not made.exists():
        for old in CACHE.glob(f"{kind}-*"):
            shutil.rmtree(old)
        with tempfile.TemporaryDirectory(dir=CACHE) as scratch:
            whole = Path(scratch) / "made"
            whole.mkdir()
            make(whole, Path(scratch))
            whole.rename(made)
    return made


def _fingerprint(*texts: str) -> str:
    """Change whenever what is made would."""
    here = Path(__file__).parent
    digest = hashlib.sha256()
    for text in texts:
        digest.update(text.encode())
        for path in sorted((*here.glob(f"{text}.py"), *here.glob(f"{text}/**/*"))):
            if path.is_file():
                digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _make_sites(folder: Path, scratch: Path) -> None:
    for name in (DEBIAN_MIRROR, PACKAGE_SITE, CODE_SITE, MODULE_PROXY, AGENT_SITE):
        (folder / name).mkdir()
    fetch()
    (scratch / "debs").mkdir()
    packages.make_debian_mirror(folder / DEBIAN_MIRROR, archive_of("npm"), scratch / "debs")
    packages.make_npm_registry(
        folder / PACKAGE_SITE, (archive_of("codex"), ARCHIVES / LAUNCHER.file)
    )
    sums = payments.make_module(folder / MODULE_PROXY)
    payments.make_repository(folder / CODE_SITE, sums, scratch)


def _make_image(folder: Path, scratch: Path) -> None:
    authority.make_authority(folder, [one.name for one in HOSTS])
    # debootstrap takes no path with a space, and ours may lie below one
    with tempfile.TemporaryDirectory(dir="/var/tmp") as plain:
        image.make_root(Path(plain) / "root", folder / authority.AUTHORITY)
        image.make_layout(Path(plain) / "root", scratch / "layout")
    image.fill_registry(scratch / "layout", folder / "registry", scratch)


def archive_of(tool: str) -> Path:
    """Give the archive that holds most of a tool."""
    return ARCHIVES / pinned(tool).packages[0].file


def fetch() -> None:
    """Have the archives that the stand-ins are made from, fetched where they are not there yet."""
    # one of them runs on the Node.js whose npm is taken
    fetch_agents("claude-code", "codex", "gemini")
    if (ARCHIVES / LAUNCHER.file).exists():
        return
    with tempfile.TemporaryDirectory() as scratch:
        variables = registry_settings()
        agents = Agents(Layout(Path(scratch)), search_path=search_path(), variables=variables)
        place = Path(scratch) / "fetched"
        place.mkdir()
        found = asyncio.run(
            agents._fetch((LAUNCHER,), place, variables=variables, announce=lambda _: None)
        )
        refuse_other(LAUNCHER, found / LAUNCHER.file)
        shutil.copyfile(found / LAUNCHER.file, ARCHIVES / LAUNCHER.file)
