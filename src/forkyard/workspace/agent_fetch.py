"""Fetching pinned archives with the registries' own clients: npm for npm, pip for PyPI.

Where a registry is, by which proxy and with which certificates is the user's configuration, which
these clients read. They run without any script of a package, in a scratch home and with a clean
environment; what they bring is checked against its pin by whoever unpacks it.
"""

from __future__ import annotations

import importlib.util
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from forkyard.agents.interface import Package
from forkyard.base.process import Finished, run_async
from forkyard.config import is_registry_variable
from forkyard.errors import WorkspaceError

TIMEOUT_SECONDS = 3600.0
PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64")
"""Newest first; every archive that is pinned runs on these."""

_COMPILED = re.compile(r"-cp3(\d+)-cp3\d+-")


class Fetcher:
    """Fetches into one scratch folder."""

    def __init__(
        self,
        scratch: Path,
        *,
        search_path: str,
        variables: Mapping[str, str],
        announce: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Keep where to work and how to find the clients.

        Args:
            scratch: An empty folder of our own; archives appear in its `archives`.
            search_path: PATH to look for npm and pip in.
            variables: Of the user's environment; those that are not for the clients are left out.
            announce: Told what is fetched.
        """
        self.archives = scratch / "archives"
        self.archives.mkdir(mode=0o700)
        home = scratch / "home"
        home.mkdir(mode=0o700)
        self._scratch = scratch
        self._search_path = search_path
        self._announce = announce
        self._variables = {
            **{name: value for name, value in variables.items() if is_registry_variable(name)},
            "PATH": search_path,
            "HOME": str(home),
            "LANG": "C.UTF-8",
        }

    @property
    def has_npm(self) -> bool:
        """Say whether this machine has npm."""
        return shutil.which("npm", path=self._search_path) is not None

    async def fetch(self, packages: Iterable[Package], *, npm: Sequence[str] = ("npm",)) -> None:
        """Fetch archives that are not there yet.

        Args:
            packages: What to fetch.
            npm: Command that runs npm.

        Raises:
            WorkspaceError: A client is missing, or says that it cannot.

        Cancellation:
            The client is ended; what is there stays in the scratch folder.
        """
        missing = [one for one in packages if not (self.archives / one.file).exists()]
        for package in missing:
            if package.registry == "npm":
                await self._npm(package, npm)
        wheels = [one for one in missing if one.registry == "pypi"]
        for version in sorted({_python_of(one) for one in wheels}):
            await self._pip(version, [one for one in wheels if _python_of(one) == version])
        for package in missing:
            if not (self.archives / package.file).exists():
                raise WorkspaceError(
                    f"cannot fetch {package.file}: its client brought another file",
                    hint="Fetch it elsewhere and use `forkyard agent install NAME --from FOLDER`.",
                )

    async def _npm(self, package: Package, npm: Sequence[str]) -> None:
        self._announce(f"fetching {package.name} {package.version}")
        await self._run(
            package.name,
            [
                *npm,
                "pack",
                f"{package.name}@{package.version}",
                "--ignore-scripts",
                "--no-audit",
                "--no-fund",
                "--no-update-notifier",
                "--loglevel=error",
                f"--pack-destination={self.archives}",
            ],
        )

    async def _pip(self, version: str, packages: Sequence[Package]) -> None:
        names = ", ".join(one.name for one in packages[:3])
        more = f" and {len(packages) - 3} more" if len(packages) > 3 else ""  # noqa: PLR2004 - as many as are named
        self._announce(f"fetching {names}{more}")
        wanted = self._scratch / f"wanted-{version}.txt"
        wanted.write_text(
            "".join(f"{one.name}=={one.version} --hash=sha256:{one.sha256}\n" for one in packages)
        )
        await self._run(
            names,
            [
                *pip_command(self._search_path),
                "download",
                "--quiet",
                "--no-input",
                "--disable-pip-version-check",
                "--no-cache-dir",
                "--no-deps",
                *("--only-binary", ":all:"),
                *("--python-version", version),
                *("--implementation", "cp"),
                *(word for one in PLATFORMS for word in ("--platform", one)),
                "--require-hashes",
                *("--requirement", str(wanted)),
                *("--dest", str(self.archives)),
            ],
        )

    async def _run(self, what: str, argv: Sequence[str]) -> Finished:
        done = await run_async(
            argv,
            variables=self._variables,
            directory=str(self._scratch),
            timeout_seconds=TIMEOUT_SECONDS,
        )
        if not done.succeeded:
            reason = _reason(done)
            raise WorkspaceError(
                f"cannot fetch {what}: {Path(argv[0]).name} says: {reason}",
                hint="Look at its configuration and the network, or fetch the archives elsewhere"
                " and use `forkyard agent install NAME --from FOLDER`.",
            )
        return done


def _reason(done: Finished) -> str:
    """Pick the lines that tell most: npm ends with where its log was, which is gone by now."""
    lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
    telling = [
        words
        for line in lines
        if (words := line.removeprefix("npm error").strip()) and "complete log of this" not in words
    ]
    return "; ".join(telling[-3:])[-300:] or f"exit {done.exit_code}"


def pip_command(search_path: str) -> tuple[str, ...]:
    """Give the command that runs pip.

    Raises:
        WorkspaceError: This machine has none.
    """
    if importlib.util.find_spec("pip") is not None:
        return (sys.executable, "-m", "pip")
    for name in ("pip3", "pip"):
        found = shutil.which(name, path=search_path)
        if found is not None:
            return (found,)
    raise WorkspaceError(
        "cannot fetch Python packages: this machine has no pip",
        hint="Install pip (Debian: python3-pip), or use `--from FOLDER` with the archives.",
    )


def _python_of(package: Package) -> str:
    """Give the Python that a wheel is for; the oldest that we know where it is for any."""
    found = _COMPILED.search(package.file)
    return f"3.{found.group(1)}" if found else "3.11"
