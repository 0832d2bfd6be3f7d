"""The bare git store of candidate trees, and the only way git is run on it.

No sandbox ever sees the store. Git gets an environment built from nothing, no work tree, no
prompt, no network, and a store whose configuration and attributes make every byte raw.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from forkyard.base import process
from forkyard.base.durable import make_directory, write_file
from forkyard.errors import WorkspaceError

GIT_TIMEOUT_SECONDS = 600.0
_SEARCH = "/usr/bin:/bin"

ENVIRONMENT = {
    "PATH": _SEARCH,
    "HOME": "/nonexistent",
    "LC_ALL": "C",
    "TZ": "UTC",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_SYSTEM": "/dev/null",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_ATTR_NOSYSTEM": "1",
    "GIT_NO_REPLACE_OBJECTS": "1",
    "GIT_GRAFT_FILE": "/dev/null",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_ALLOW_PROTOCOL": "",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_ASKPASS": "/bin/false",
    "GIT_EDITOR": "/bin/false",
    "GIT_PAGER": "cat",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_AUTHOR_NAME": "forkyard",
    "GIT_AUTHOR_EMAIL": "forkyard@localhost",
    "GIT_AUTHOR_DATE": "@0 +0000",
    "GIT_COMMITTER_NAME": "forkyard",
    "GIT_COMMITTER_EMAIL": "forkyard@localhost",
    "GIT_COMMITTER_DATE": "@0 +0000",
}

_CONFIG = b"""\
[core]
\trepositoryformatversion = 0
\tbare = true
\tfsmonitor = false
\thooksPath = /dev/null
\tattributesFile = /dev/null
\texcludesFile = /dev/null
\tautocrlf = false
\tsafecrlf = false
\tfileMode = true
\tsymlinks = true
\tignoreCase = false
\tprecomposeUnicode = false
\tprotectNTFS = true
\tprotectHFS = true
\tuntrackedCache = false
\tsplitIndex = false
[protocol]
\tallow = never
[submodule]
\trecurse = false
[diff]
\tignoreSubmodules = all
\trenames = false
[gc]
\tauto = 0
[maintenance]
\tauto = false
"""

_ATTRIBUTES = (
    b"* -text -eol -crlf -ident -filter -working-tree-encoding -export-subst -export-ignore"
    b" -merge -whitespace !diff\n"
)
"""Of all attribute files this one wins: nothing in a tree changes how bytes are taken."""


class ObjectStore:
    """Git objects of all bases and candidates on this machine."""

    def __init__(self, directory: Path) -> None:
        """Keep the directory; it is created at the first use."""
        self._directory = directory
        self._is_ready = False
        self._lock = asyncio.Lock()
        self.packing = asyncio.Lock()
        """Held while packs are named or removed."""
        found = shutil.which("git", path=_SEARCH)
        self._git = found or "/usr/bin/git"

    @property
    def directory(self) -> Path:
        """Where it lies."""
        return self._directory

    @property
    def bases(self) -> Path:
        """Holds the tree index of each base."""
        return self._directory / "bases"

    @property
    def mount_point(self) -> Path:
        """An empty directory that helpers mount on, each in a namespace of its own."""
        return self._directory / "mount"

    @property
    def _scratch(self) -> Path:
        return self._directory / "scratch"

    async def prepare(self) -> None:
        """Create the store, or put its settings right; what a crash left in it is removed.

        Durability:
            The store is on disk when this returns. Idempotent.
        """
        async with self._lock:
            if self._is_ready:
                return
            make_directory(self._directory)
            # an object directory alone is no sign of a finished init, so it is simply repeated
            await self._run(["init", "--quiet", "--bare", "--template=", str(self._directory)], {})
            write_file(self._directory / "config", _CONFIG)
            make_directory(self._directory / "info")
            write_file(self._directory / "info" / "attributes", _ATTRIBUTES)
            shutil.rmtree(self._scratch, ignore_errors=True)
            for directory in (self.bases, self.mount_point, self._scratch):
                make_directory(directory)
            self._is_ready = True

    @asynccontextmanager
    async def scratch(self) -> AsyncIterator[Path]:
        """Give a directory that is gone afterwards."""
        await self.prepare()
        with tempfile.TemporaryDirectory(dir=self._scratch) as name:
            yield Path(name)

    async def git(
        self,
        arguments: Sequence[str | bytes],
        *,
        stdin: bytes = b"",
        index: Path | None = None,
        work_tree: Path | None = None,
        output: int | None = None,
    ) -> process.Finished:
        """Run one git command on the store.

        Args:
            arguments: The subcommand and what follows.
            stdin: What it reads.
            index: The index file it uses.
            work_tree: Only for a directory that we made and filled ourselves.
            output: Descriptor that takes its standard output instead of memory.

        Returns:
            How it ended, also when it failed.

        Raises:
            WorkspaceError: It could not be run, or took too long.
        """
        await self.prepare()
        more = {"GIT_DIR": str(self._directory)}
        if index is not None:
            more["GIT_INDEX_FILE"] = str(index)
        if work_tree is not None:
            more["GIT_WORK_TREE"] = str(work_tree)
        return await self._run(arguments, more, stdin=stdin, output=output)

    async def check(
        self,
        arguments: Sequence[str | bytes],
        *,
        stdin: bytes = b"",
        index: Path | None = None,
        output: int | None = None,
    ) -> bytes:
        """Run one git command that must succeed; give its output.

        Raises:
            WorkspaceError: It failed, could not be run, or took too long.
        """
        finished = await self.git(arguments, stdin=stdin, index=index, output=output)
        if not finished.succeeded:
            said = finished.stderr.decode("utf-8", "replace").strip().replace("\n", "; ")
            msg = f"cannot run git {_text(arguments[0])} on the object store: {said[:400]}"
            raise WorkspaceError(msg, hint="Check the disk and run `forkyard doctor`.")
        return finished.stdout

    async def read_blob(self, blob: str) -> bytes:
        """Give the bytes of one blob (for a link: where it points).

        Raises:
            WorkspaceError: It is not in the store.
        """
        return await self.check(["cat-file", "blob", blob])

    async def add_pack(self, pack: Path) -> None:
        """Take the objects of a pack file in, each checked by its hash.

        Durability:
            The objects are on disk when this returns.
        """
        await self.prepare()
        with pack.open("rb") as file:
            finished = await process.run_async(
                [self._git, "index-pack", "--stdin", "--threads=1"],
                variables={**ENVIRONMENT, "GIT_DIR": str(self._directory)},
                stdin_from=file.fileno(),
                timeout_seconds=GIT_TIMEOUT_SECONDS,
            )
        if not finished.succeeded:
            said = finished.stderr.decode("utf-8", "replace").strip().replace("\n", "; ")
            msg = f"cannot take objects into the store: {said[:400]}"
            raise WorkspaceError(msg, hint="Check the disk and run `forkyard doctor`.")
        async with self.packing:
            self._touch(finished.stdout.decode("ascii", "replace").split()[-1])

    def _touch(self, name: str) -> None:
        # It may have been there before, unneeded and old; whoever removes such ones looks at this.
        try:
            os.utime(self._directory / "objects" / "pack" / f"pack-{name}.pack")
        except OSError as error:
            msg = f"cannot take objects into the store: pack {name} is not there"
            raise WorkspaceError(msg, hint="Check the disk, then try again.") from error

    async def _run(
        self,
        arguments: Sequence[str | bytes],
        more: dict[str, str],
        *,
        stdin: bytes = b"",
        output: int | None = None,
    ) -> process.Finished:
        return await process.run_async(
            [self._git, *arguments],
            variables={**ENVIRONMENT, **more},
            stdin=stdin,
            directory="/",
            timeout_seconds=GIT_TIMEOUT_SECONDS,
            stdout_to=output,
        )


def _text(argument: str | bytes) -> str:
    return argument if isinstance(argument, str) else argument.decode("utf-8", "replace")
