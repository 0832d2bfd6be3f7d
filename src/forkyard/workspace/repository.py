"""Taking a repository over into a layer: the working tree as it lies, a commit, or a clone.

A repository on this machine is read, never written to. What is taken, and what is not, is said in
plain sentences that end up in the build log.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import stat
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import forkyard
from forkyard.base.process import run_async
from forkyard.base.words import counted
from forkyard.config import Layout
from forkyard.errors import UserError, WorkspaceError
from forkyard.model.workspace import RepositorySource
from forkyard.shim import kernel
from forkyard.shim.ids import STORAGE_USER_ID
from forkyard.workspace.clone import CLONE_SECONDS, Login, Wanted, clone
from forkyard.workspace.repository_source import (
    Source,
    look,
    refuse_borrowed_objects,
    revision,
    summary,
    trusting,
)
from forkyard.workspace.trusted_git import git, git_or_error, last_words
from forkyard.workspace.worktree_include import INCLUDE_FILE, included_files

COPY_SECONDS = 3600.0
_MOST_NAMED = 10
_PASSWORD = re.compile(
    r"^(\s*(?:url|pushurl)\s*=\s*[a-z+]+://)[^/@\s]*@", re.IGNORECASE | re.MULTILINE
)
_HEADER = re.compile(r"^\s*extraheader\s*=.*\n?", re.IGNORECASE | re.MULTILINE)
_KEPT_SETTINGS = re.compile(
    r"^(remote\.[^\n]+\.(url|fetch)|branch\.[^\n]+\.(remote|merge)|user\.(name|email))$",
    re.IGNORECASE,
)

Say = Callable[[str], None]


class Importer:
    """Brings repositories into half-made layers."""

    def __init__(
        self, layout: Layout, secret: Callable[[str], str | None] = lambda _: None
    ) -> None:
        """Keep where our own state lies: it is never taken along; and where passwords come from."""
        self._layout = layout
        self._secret = secret

    async def take(self, source: RepositorySource, target: Path, say: Say) -> str | None:
        """Bring a repository into an empty folder of a half-made layer.

        Args:
            source: A path or a url.
            target: Its parent exists; everything in it will belong to the sandbox's user.
            say: Takes sentences for the build log.

        Returns:
            The absolute path on this machine; None for a url.

        Raises:
            UserError: It cannot be taken as asked, with what to ask for instead.
            WorkspaceError: Copying or cloning failed.

        Cancellation:
            Nothing goes on; the target is left half-made.
        """
        if source.url is not None:
            await self._clone(source, source.url, target, say)
            return None
        if source.path is None:
            raise UserError("cannot take a repository: neither a path nor a url is given")
        found = await look(source.path)
        if source.include_uncommitted:
            await self._copy(found, target, say)
        else:
            found = await revision(found, source.branch, source.checkout)
            await self._take_commit(found, target, say, depth=source.depth)
        return found.path

    async def _copy(self, source: Source, target: Path, say: Say) -> None:
        if not source.is_repository:
            say(f"{source.path} is no git repository; its files are taken as they are")
        elif not source.is_linked:
            refuse_borrowed_objects(source.path)
        if source.is_repository:
            say(await summary(source))
        target.mkdir()  # noqa: ASYNC240 - one system call
        await self._copy_files(source, target, say, skip_top=[".git"] if source.is_linked else [])
        if source.is_linked:
            say("its .git is kept elsewhere: the copy has a repository of its own, nothing staged")
            async with _safe_settings(target) as variables:
                await _fetch(source, target, variables, depth=None)
                if source.commit is not None:
                    await git_or_error(
                        f"take {source.path}",
                        "reset",
                        "-q",
                        directory=target,
                        variables=variables,
                        timeout_seconds=CLONE_SECONDS,
                    )
                await _keep_settings(source.path, target, variables)
            await asyncio.to_thread(give_to_user, target / ".git")
        if source.is_repository:
            _scrub(target, say)

    async def _copy_files(
        self,
        source: Source,
        target: Path,
        say: Say,
        *,
        only: Sequence[str] | None = None,
        skip_top: Sequence[str] = (),
    ) -> None:
        home = self._layout.home.stat()
        asked: dict[str, object] = {
            "source": source.path,
            "target": str(target),
            "owner": STORAGE_USER_ID,
            "skip": [(home.st_dev, home.st_ino)],
            "skip_top": list(skip_top),
        }
        if only is not None:
            asked["only"] = list(only)
        package = Path(forkyard.__file__).parents[1]
        done = await run_async(
            [sys.executable, "-P", "-m", "forkyard.workspace.tree_copy"],
            variables={"PYTHONPATH": str(package), "PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8"},
            stdin=json.dumps(asked).encode(),
            timeout_seconds=COPY_SECONDS,
        )
        if not done.succeeded:
            raise WorkspaceError(f"cannot copy {source.path}: {last_words(done.stderr)}")
        report = json.loads(done.stdout)
        if report["error"] is not None:
            raise WorkspaceError(
                f"cannot copy {source.path}: {report['error']}",
                hint="Free space in the state directory, then build again."
                if report["full"]
                else "Stop what writes there (a watcher, a server), then build again.",
            )
        for path, reason in report["notes"]:
            say(f"not taken: {path}: {reason}")
        files = counted(report["files"], "file")
        say(f"taken: {files}, {report['size_bytes'] / 1024**2:.1f} MiB")

    async def _take_commit(
        self, source: Source, target: Path, say: Say, *, depth: int | None
    ) -> None:
        if not source.is_repository:
            raise UserError(
                f"cannot take the committed state of {source.path}: it is no git repository",
                hint="Write `include_uncommitted: true` to take its files as they are.",
            )
        if source.commit is None:
            raise UserError(
                f"cannot take the committed state of {source.path}: it has no commit yet",
                hint="Commit something, or write `include_uncommitted: true`.",
            )
        say(
            f"taken: commit {source.commit[:12]}"
            + (f" of branch {source.branch}" if source.branch else " (detached)")
            + f" of {source.path}; uncommitted work is not taken"
        )
        doing = f"take the committed state of {source.path}"
        async with _safe_settings(target) as variables:
            await _fetch(source, target, variables, depth=depth)
            await git_or_error(
                doing,
                "reset",
                "-q",
                "--hard",
                source.commit,
                directory=target,
                variables=variables,
                timeout_seconds=CLONE_SECONDS,
            )
            await _keep_settings(source.path, target, variables)
        _note_submodules(target, say)
        _scrub(target, say)
        await asyncio.to_thread(give_to_user, target)
        included = await included_files(source.path)
        if included:
            files = counted(len(included), "ignored file")
            say(f"{INCLUDE_FILE} asks for {files}: {_some(included)}")
            await self._copy_files(source, target, say, only=included)

    async def _clone(self, source: RepositorySource, url: str, target: Path, say: Say) -> None:
        login: Login | None = None
        if source.credentials is not None:
            name = source.credentials.secret
            password = self._secret(name)
            if password is None:
                raise UserError(
                    f"cannot clone {url}: secret {name} is not set",
                    hint=f"Set it with `forkyard secret set {name}`.",
                )
            login = Login(username=source.credentials.username, password=password, secret=name)
        wanted = Wanted(
            branch=source.branch,
            checkout=source.checkout,
            depth=source.depth,
            submodules=source.submodules,
        )
        await clone(url, target, say, wanted=wanted, login=login)
        if not source.submodules:
            _note_submodules(target, say)
        _scrub(target, say)
        await asyncio.to_thread(give_to_user, target)


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return ", ".join(names[:_MOST_NAMED]) + more


async def _fetch(
    source: Source, target: Path, variables: dict[str, str], *, depth: int | None
) -> None:
    """Make a repository with the source's commits; with a depth, of its one branch only."""
    doing = f"take the history of {source.path}"
    start = ("init", "-q", "--template=", f"--initial-branch={source.branch or 'main'}")
    await git_or_error(doing, *start, str(target), variables=variables)
    everything = [f"+refs/{kind}/*:refs/{kind}/*" for kind in ("heads", "tags", "remotes")]
    wanted: list[tuple[str, ...]] = []
    if depth is not None and source.commit is not None:
        wanted.append((f"--depth={depth}", source.path, source.commit))
    else:
        wanted.append(("--update-head-ok", source.path, *everything))
        if source.commit is not None and source.branch is None:
            wanted.append((source.path, source.commit))
    for what in wanted:
        await git_or_error(
            doing,
            "fetch",
            "-q",
            "--no-tags",
            "--no-write-fetch-head",
            "--no-auto-gc",
            "--update-shallow",
            "--recurse-submodules=no",
            *what,
            directory=target,
            variables=variables,
            timeout_seconds=CLONE_SECONDS,
        )
    if source.commit is None:
        return
    if source.branch is None:
        (target / ".git" / "HEAD").write_text(f"{source.commit}\n", encoding="ascii")
    else:  # of a remote only, or of one branch only: it is not there by itself
        await git_or_error(
            doing,
            "update-ref",
            f"refs/heads/{source.branch}",
            source.commit,
            directory=target,
            variables=variables,
        )


async def _keep_settings(source: str, target: Path, variables: dict[str, str]) -> None:
    """Carry remotes and what branches follow; no other setting of the source."""
    done = await git("-C", source, "config", "--local", "-z", "--list", variables=trusting())
    for record in done.stdout.decode(errors="surrogateescape").split("\0"):
        key, _, value = record.partition("\n")
        if _KEPT_SETTINGS.fullmatch(key):
            await git("config", "--add", key, value, directory=target, variables=variables)


def _scrub(target: Path, say: Say) -> None:
    """Take passwords out of the copied settings: agents can read them."""
    root = os.open(target, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        # Never through a link: what git made of a stranger's bytes is not believed.
        config = kernel.open_beneath(root, b".git/config", os.O_RDWR | os.O_NONBLOCK)
    except OSError:
        return
    finally:
        os.close(root)
    with open(config, "r+b") as file:  # noqa: PTH123 - a descriptor
        if not stat.S_ISREG(os.fstat(config).st_mode):
            return
        text = file.read().decode(errors="surrogateescape")
        clean = _HEADER.sub("", _PASSWORD.sub(r"\1", text))
        if clean != text:
            file.seek(0)
            file.write(clean.encode(errors="surrogateescape"))
            file.truncate()
            say("removed from the copy's .git/config: a user name, password or header of a remote")


def _note_submodules(target: Path, say: Say) -> None:
    if (target / ".gitmodules").exists():
        say("its submodules are not fetched; add an ON_CREATE task if they are needed")


@contextlib.asynccontextmanager
async def _safe_settings(target: Path) -> AsyncIterator[dict[str, str]]:
    """Let git read a repository whoever owns it; only a settings file reaches git's helpers."""
    path = target.with_name(f".{target.name}.gitconfig")
    path.write_text("[safe]\n\tdirectory = *\n", encoding="ascii")
    try:
        yield {"GIT_CONFIG_GLOBAL": str(path), "GIT_ALLOW_PROTOCOL": "file"}
    finally:
        path.unlink(missing_ok=True)


def give_to_user(root: Path) -> None:
    """Give a tree that trusted git wrote to the sandbox's user, links themselves included."""
    os.chown(root, STORAGE_USER_ID, STORAGE_USER_ID)
    for _, folders, files, descriptor in os.fwalk(root, follow_symlinks=False):
        for name in (*folders, *files):
            os.chown(
                name, STORAGE_USER_ID, STORAGE_USER_ID, dir_fd=descriptor, follow_symlinks=False
            )
