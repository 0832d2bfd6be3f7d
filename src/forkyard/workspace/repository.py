"""Taking a repository over into a layer: the working tree as it lies, a commit, or a clone.

A repository on this machine is read, never written to. What is taken, and what is not, is said in
plain sentences that end up in the build log.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import stat
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import forkyard
from forkyard.base.process import run_async
from forkyard.config import Layout
from forkyard.errors import UserError, WorkspaceError
from forkyard.model.workspace import RepositorySource
from forkyard.shim import kernel
from forkyard.shim.ids import STORAGE_USER_ID
from forkyard.workspace.clone import CLONE_SECONDS, clone
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A folder on this machine, looked at."""

    path: str
    """With links resolved; the folder also appears there in the workspace."""
    is_repository: bool
    commit: str | None = None
    """What HEAD means; None in a repository without commits."""
    branch: str | None = None


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
            await self._clone(source.url, target, say)
            return None
        if source.path is None:
            raise UserError("cannot take a repository: neither a path nor a url is given")
        found = await look(source.path)
        if source.include_uncommitted:
            await self._copy(found, target, say)
        else:
            await self._take_commit(found, target, say)
        return found.path

    async def _copy(self, source: Source, target: Path, say: Say) -> None:
        if source.is_repository:
            _refuse_borrowed_objects(source.path)
            say(await _summary(source))
        else:
            say(f"{source.path} is no git repository; its files are taken as they are")
        target.mkdir()  # noqa: ASYNC240 - one system call
        await self._copy_files(source, target, say)
        if source.is_repository:
            _scrub(target, say)

    async def _copy_files(
        self, source: Source, target: Path, say: Say, *, only: Sequence[str] | None = None
    ) -> None:
        home = self._layout.home.stat()
        asked: dict[str, object] = {
            "source": source.path,
            "target": str(target),
            "owner": STORAGE_USER_ID,
            "skip": [(home.st_dev, home.st_ino)],
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
        say(f"taken: {report['files']} files, {report['size_bytes'] / 1024**2:.1f} MiB")

    async def _take_commit(self, source: Source, target: Path, say: Say) -> None:
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
        safe = _write_safe_settings(target)
        variables = {"GIT_CONFIG_GLOBAL": str(safe), "GIT_ALLOW_PROTOCOL": "file"}
        try:
            await git_or_error(
                doing,
                "init",
                "-q",
                "--template=",
                f"--initial-branch={source.branch or 'main'}",
                str(target),
                variables=variables,
            )
            await git_or_error(
                doing,
                "fetch",
                "-q",
                "--no-tags",
                "--no-write-fetch-head",
                "--no-auto-gc",
                "--update-shallow",
                "--update-head-ok",
                "--recurse-submodules=no",
                source.path,
                "+refs/heads/*:refs/heads/*",
                "+refs/tags/*:refs/tags/*",
                "+refs/remotes/*:refs/remotes/*",
                directory=target,
                variables=variables,
                timeout_seconds=CLONE_SECONDS,
            )
            if source.branch is None:
                await git_or_error(
                    doing,
                    "fetch",
                    "-q",
                    "--no-tags",
                    "--no-write-fetch-head",
                    "--update-shallow",
                    source.path,
                    "HEAD",
                    directory=target,
                    variables=variables,
                    timeout_seconds=CLONE_SECONDS,
                )
                (target / ".git" / "HEAD").write_text(f"{source.commit}\n", encoding="ascii")
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
        finally:
            safe.unlink(missing_ok=True)
        _note_submodules(target, say)
        _scrub(target, say)
        await asyncio.to_thread(give_to_user, target)
        included = await included_files(source.path)
        if included:
            say(f"{INCLUDE_FILE} asks for {len(included)} ignored files: {_some(included)}")
            await self._copy_files(source, target, say, only=included)

    async def _clone(self, url: str, target: Path, say: Say) -> None:
        await clone(url, target, say)
        _note_submodules(target, say)
        _scrub(target, say)
        await asyncio.to_thread(give_to_user, target)


async def look(path: str) -> Source:
    """Look at a folder on this machine without changing it.

    Raises:
        UserError: It is missing, or laid out in a way that cannot be taken.
    """
    real = os.path.realpath(path)  # noqa: ASYNC240 - few system calls
    if not Path(real).is_dir():  # noqa: ASYNC240 - one system call
        raise UserError(
            f"cannot take repository {path}: there is no such folder",
            hint="Give the path of the repository's top folder.",
        )
    dot_git = Path(real) / ".git"
    try:
        facts = dot_git.lstat()
    except FileNotFoundError:
        return Source(path=real, is_repository=False)
    if not stat.S_ISDIR(facts.st_mode):
        what = "a link" if stat.S_ISLNK(facts.st_mode) else "a linked worktree or a submodule"
        raise UserError(
            f"cannot take repository {path}: its .git is {what}, kept elsewhere",
            hint="Give the main working tree, or a clone of its own (`git clone PATH COPY`).",
        )
    commit = await _read(real, "rev-parse", "--verify", "-q", "HEAD^{commit}")
    branch = await _read(real, "symbolic-ref", "-q", "--short", "HEAD")
    return Source(path=real, is_repository=True, commit=commit, branch=branch)


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return ", ".join(names[:_MOST_NAMED]) + more


async def _read(path: str, *arguments: str) -> str | None:
    done = await git("-C", path, *arguments, variables=_trusting())
    return done.stdout.decode(errors="surrogateescape").strip() or None if done.succeeded else None


async def _summary(source: Source) -> str:
    """Say what of a working tree is not committed, in counts."""
    done = await git(
        "-C",
        source.path,
        "status",
        "--porcelain=v2",
        "-z",
        "--untracked-files=normal",
        "--ignore-submodules=dirty",
        variables=_trusting(),
        owner=Path(source.path).stat().st_uid,  # noqa: ASYNC240 - one system call
    )
    where = (
        f"{source.path} at {source.commit[:12]}" if source.commit else f"{source.path} (no commit)"
    )
    if not done.succeeded:
        return f"{where}: its uncommitted work could not be counted ({last_words(done.stderr)})"
    modified = untracked = staged = 0
    records = iter(done.stdout.split(b"\0"))
    for record in records:
        if record.startswith(b"? "):
            untracked += 1
        elif record[:2] in (b"1 ", b"2 ", b"u "):
            staged += record[2:3] != b"."
            modified += record[3:4] != b"."
            if record.startswith(b"2 "):
                next(records, None)
    if not (modified or untracked or staged):
        return f"{where}: nothing uncommitted"
    return (
        f"{where}: uncommitted work is taken: {staged} staged, {modified} modified,"
        f" {untracked} untracked; ignored files as well"
    )


async def _keep_settings(source: str, target: Path, variables: dict[str, str]) -> None:
    """Carry remotes and what branches follow; no other setting of the source."""
    done = await git("-C", source, "config", "--local", "-z", "--list", variables=_trusting())
    for record in done.stdout.decode(errors="surrogateescape").split("\0"):
        key, _, value = record.partition("\n")
        if _KEPT_SETTINGS.fullmatch(key):
            await git("config", "--add", key, value, directory=target, variables=variables)


def _refuse_borrowed_objects(path: str) -> None:
    alternates = Path(path) / ".git" / "objects" / "info" / "alternates"
    if alternates.exists() and alternates.read_bytes().strip():
        raise UserError(
            f"cannot take repository {path}: it borrows objects from another repository"
            " (objects/info/alternates), which no fork could see",
            hint="Run `git repack -a -d` there and remove that file.",
        )


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


def _write_safe_settings(target: Path) -> Path:
    """Let git read a repository whoever owns it; only a settings file reaches git's helpers."""
    path = target.with_name(f".{target.name}.gitconfig")
    path.write_text("[safe]\n\tdirectory = *\n", encoding="ascii")
    return path


def _trusting() -> dict[str, str]:
    return {
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": "safe.directory",
        "GIT_CONFIG_VALUE_0": "*",
    }


def give_to_user(root: Path) -> None:
    """Give a tree that trusted git wrote to the sandbox's user, links themselves included."""
    os.chown(root, STORAGE_USER_ID, STORAGE_USER_ID)
    for _, folders, files, descriptor in os.fwalk(root, follow_symlinks=False):
        for name in (*folders, *files):
            os.chown(
                name, STORAGE_USER_ID, STORAGE_USER_ID, dir_fd=descriptor, follow_symlinks=False
            )
