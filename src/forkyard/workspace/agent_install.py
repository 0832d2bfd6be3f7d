"""Installed agents: one read-only folder for each pinned version, shown to sandboxes as it is.

A folder gets its name when it is whole, so one that has its name is. Installing twice at once is
harmless: the second finds the first's, or loses the rename and takes the winner's.
"""

from __future__ import annotations

import asyncio
import ctypes
import hashlib
import json
import os
import platform
import shutil
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from forkyard.agents.interface import AGENTS_ROOT, Package, Recipe
from forkyard.agents.pins import pinned
from forkyard.agents.registry import driver_named, driver_names
from forkyard.base.durable import make_directory, sync_directory
from forkyard.base.removal import remove_tree
from forkyard.config import Layout
from forkyard.errors import ConfigError, NotFoundError, WorkspaceError
from forkyard.model.workspace import ReadOnlyMount
from forkyard.workspace.agent_archives import Abandoned, Unpacker, refuse_other
from forkyard.workspace.agent_contents import (
    CONTENTS,
    compile_library,
    damage_of,
    write_contents,
)
from forkyard.workspace.agent_fetch import Fetcher
from forkyard.workspace.agent_progress import Doing

MACHINE = "x86_64"
"""The only one that agents are pinned for."""
NEW = ".new-"
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class InstalledAgent:
    """One agent that is there, whole."""

    driver: str
    version: str
    digest: str
    """Of its recipe: which archives, with which hashes, put together how."""
    folder: Path

    @property
    def mount(self) -> ReadOnlyMount:
        """Give how sandboxes are shown it."""
        return ReadOnlyMount(
            source=str(self.folder),
            target=f"{AGENTS_ROOT}/{self.driver}",
            reason=f"agent {self.driver} {self.version}",
        )


class Agents:
    """Which agents are installed below one state directory."""

    def __init__(
        self,
        layout: Layout,
        *,
        search_path: str = "/usr/local/bin:/usr/bin:/bin",
        variables: Mapping[str, str] | None = None,
    ) -> None:
        """Keep where; nothing is looked at yet.

        Args:
            layout: Of the installation.
            search_path: PATH to find npm and pip in.
            variables: What our own environment says of registries.
        """
        self._layout = layout
        self._search_path = search_path
        self._variables = dict(variables or {})
        self._locks: dict[str, asyncio.Lock] = {}
        self._doing: dict[str, Doing] = {}

    def find(self, driver: str) -> InstalledAgent | None:
        """Give an agent that is installed as it is pinned now; None: it is not.

        Raises:
            ConfigError: There is no such driver.
        """
        recipe = recipe_of(driver)
        return None if recipe is None else self._find(driver, recipe)

    def mount(self, driver: str) -> ReadOnlyMount | None:
        """Give what a sandbox must be shown for a driver; None: nothing.

        Raises:
            NotFoundError: It is not installed.
        """
        if recipe_of(driver) is None:
            return None
        found = self.find(driver)
        if found is None:
            raise NotFoundError(
                f"cannot run an agent of driver {driver}: it is not installed",
                hint=f"Run `forkyard agent install {driver}`.",
            )
        return found.mount

    async def install(
        self,
        driver: str,
        *,
        source: Path | None = None,
        variables: Mapping[str, str] | None = None,
        announce: Callable[[str], None] = lambda _: None,
    ) -> InstalledAgent:
        """Install an agent as it is pinned; one that is there and whole is left as it is.

        Args:
            driver: Which.
            source: Folder that holds its archives; None: they are fetched.
            variables: What the environment of whoever asks says of registries.
            announce: Told what is done.

        Raises:
            ConfigError: The driver needs no installation, or this is another kind of machine.
            NotFoundError: The folder lacks an archive.
            WorkspaceError: An archive cannot be fetched, or is not the pinned one.

        Cancellation:
            Nothing is left behind.

        Durability:
            The agent is on disk, whole, when this returns.
        """
        recipe = recipe_of(driver)
        if recipe is None:
            raise ConfigError(
                f"cannot install {driver}: its commands are the user's own",
                hint="See `forkyard agent list` for what can be installed.",
            )
        return await self._install(
            driver,
            recipe,
            source=source,
            variables={**self._variables, **(variables or {})},
            announce=announce,
        )

    async def fetch(
        self,
        driver: str,
        folder: Path,
        *,
        variables: Mapping[str, str] | None = None,
        announce: Callable[[str], None] = lambda _: None,
    ) -> tuple[Path, ...]:
        """Put an agent's archives into a folder, for `install` to take them from there.

        Args:
            driver: Which.
            folder: Archives that are in it are left as they are.
            variables: What the environment of whoever asks says of registries.
            announce: Told what is done.

        Returns:
            All of them; the new ones are the pinned ones.

        Raises:
            ConfigError: There is no such driver.
            WorkspaceError: An archive cannot be fetched, or is not the pinned one.

        Durability:
            None: an archive that is there is whole, but may be lost in a power cut.
        """
        recipe = recipe_of(driver)
        packages = () if recipe is None else recipe.packages
        missing = tuple(one for one in packages if not (folder / one.file).exists())
        if missing:
            make_directory(folder, mode=0o755)
            scratch = folder / f"{NEW}{uuid.uuid4().hex}"
            scratch.mkdir(mode=0o700)
            try:
                found = await self._fetch(
                    missing,
                    scratch,
                    variables={**self._variables, **(variables or {})},
                    announce=announce,
                )
                for one in missing:
                    await asyncio.to_thread(refuse_other, one, found / one.file)
                    (found / one.file).rename(folder / one.file)
            finally:
                await asyncio.to_thread(shutil.rmtree, scratch, ignore_errors=True)
        return tuple(folder / one.file for one in packages)

    async def damage(self, agent: InstalledAgent) -> tuple[str, ...]:
        """Compare every file of an installed agent with what was unpacked.

        Returns:
            What is wrong; empty: nothing.
        """
        return await asyncio.to_thread(damage_of, agent.folder)

    def doing(self, driver: str) -> Doing | None:
        """Say what is done to install an agent just now; None: nothing."""
        return self._doing.get(driver)

    def others(self, driver: str) -> tuple[str, ...]:
        """Name the folders of an agent's other versions; running workspaces may still use them."""
        current = self.find(driver)
        return tuple(
            sorted(
                one.name
                for one in self._layout.agents.glob(f"{driver}-[0-9]*")
                if current is None or one != current.folder.parent
            )
        )

    # -- small ones --------------------------------------------------------------------------

    def _find(self, name: str, recipe: Recipe) -> InstalledAgent | None:
        digest = digest_of(recipe)
        place = self._layout.agents / f"{name}-{recipe.version}-{digest}"
        if not (place / CONTENTS).is_file():
            return None
        return InstalledAgent(
            driver=name, version=recipe.version, digest=digest, folder=place / "files"
        )

    async def _install(
        self,
        name: str,
        recipe: Recipe,
        *,
        source: Path | None,
        variables: Mapping[str, str],
        announce: Callable[[str], None],
    ) -> InstalledAgent:
        if platform.machine() != MACHINE:
            raise ConfigError(
                f"cannot install {name}: this machine is {platform.machine()}, agents are pinned"
                f" for {MACHINE}",
                hint="Use `driver: command` with an agent that the template installs.",
            )
        async with self._locks.setdefault(name, asyncio.Lock()):
            found = self._find(name, recipe)
            if found is not None:
                if not await self.damage(found):
                    return found
                announce(f"{name} {recipe.version} is damaged; installing it again")
                await asyncio.to_thread(remove_tree, found.folder.parent, self._layout.trash)
            make_directory(self._layout.agents)
            scratch = self._layout.agents / f"{NEW}{uuid.uuid4().hex}"
            scratch.mkdir(mode=0o700)
            self._doing[name] = doing = Doing(scratch, announce)
            announce = doing.tell
            try:
                archives = source
                if archives is None:
                    archives = await self._fetch(
                        recipe.packages, scratch, variables=variables, announce=announce
                    )
                _refuse_missing(name, recipe, archives)
                announce(f"unpacking {name} {recipe.version}")
                await _in_thread(_unpack, recipe, archives, scratch / "made")
                if recipe.library:
                    announce(f"compiling {name}")
                    await compile_library(scratch / "made", recipe.library)
                self._publish(name, recipe, scratch / "made")
            finally:
                del self._doing[name]
                await asyncio.to_thread(remove_tree, scratch, self._layout.trash)
            found = self._find(name, recipe)
            if found is None:
                raise WorkspaceError(f"cannot install {name}: it vanished while it was installed")
            return found

    async def _fetch(
        self,
        packages: Sequence[Package],
        scratch: Path,
        *,
        variables: Mapping[str, str],
        announce: Callable[[str], None],
    ) -> Path:
        fetcher = Fetcher(
            scratch, search_path=self._search_path, variables=variables, announce=announce
        )
        npm: tuple[str, ...] = ("npm",)
        if not fetcher.has_npm and any(one.registry == "npm" for one in packages):
            announce("this machine has no npm: fetching one")
            tool = await self._install(
                "npm", pinned("npm"), source=None, variables=variables, announce=announce
            )
            npm = (
                str(tool.folder / "bin" / "node"),
                str(tool.folder / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"),
            )
        await fetcher.fetch(packages, npm=npm)
        return fetcher.archives

    def _publish(self, name: str, recipe: Recipe, made: Path) -> None:
        _sync_file_system(made)
        place = self._layout.agents / f"{name}-{recipe.version}-{digest_of(recipe)}"
        try:
            made.rename(place)
        except OSError:
            if not (place / CONTENTS).is_file():
                raise
        sync_directory(self._layout.agents)


def recipe_of(driver: str) -> Recipe | None:
    """Give what a driver needs installed.

    Raises:
        ConfigError: There is no such driver.
    """
    return driver_named(driver).recipe


def installable() -> tuple[str, ...]:
    """List the drivers that need an installation."""
    return tuple(name for name in driver_names() if recipe_of(name) is not None)


def digest_of(recipe: Recipe) -> str:
    """Give a recipe's digest: whatever changes what is installed changes it."""
    text = json.dumps(asdict(recipe), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _refuse_missing(name: str, recipe: Recipe, archives: Path) -> None:
    missing = [one.file for one in recipe.packages if not (archives / one.file).is_file()]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise NotFoundError(
            f"cannot install {name}: {archives} has no {missing[0]}{more}",
            hint=f"Put the archives there that `forkyard agent check {name} --json` lists.",
        )


def _unpack(recipe: Recipe, archives: Path, made: Path, stop: threading.Event) -> None:
    files = made / "files"
    made.mkdir(mode=0o755)
    files.mkdir(mode=0o755)
    unpacker = Unpacker(files, stop)
    for package in recipe.packages:
        unpacker.unpack(package, archives / package.file)
    if not any(one.path == recipe.program for one in unpacker.files):
        raise WorkspaceError(f"cannot install {recipe.program}: no archive holds it")
    for folder, _, _ in os.walk(files):
        Path(folder).chmod(0o755)
    write_contents(made, unpacker.files)


async def _in_thread(
    work: Callable[[Recipe, Path, Path, threading.Event], None],
    recipe: Recipe,
    archives: Path,
    made: Path,
) -> None:
    """Run it in a thread, and wait for its end also when we are cancelled."""
    stop = threading.Event()
    task = asyncio.ensure_future(asyncio.to_thread(work, recipe, archives, made, stop))
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        stop.set()
        await asyncio.wait({task})
        task.exception()
        raise
    except Abandoned as error:  # only ever after a cancellation
        raise asyncio.CancelledError from error


def _sync_file_system(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if _libc.syncfs(ctypes.c_int(descriptor)) < 0:
            number = ctypes.get_errno()
            msg = f"cannot keep agents on disk: {os.strerror(number)}"
            raise WorkspaceError(msg, hint="Free space in the state directory, then retry.")
    finally:
        os.close(descriptor)
