"""Cloning from an address: bytes of a stranger, read by git as a user without any right.

What keeps a hostile remote from running something here (docs/decisions/0017):

- protocols: https, http, ssh and git; never `ext`, `file` or a helper that a setting names;
- no setting of anybody: neither the system's, nor a user's, nor a template's;
- no hook exists, no filter driver is defined, nothing is asked; submodules only where they are
  wanted, over the same protocols but ssh;
- git runs as a user of its own, with no capability and no way to one, in namespaces where it sees
  its folder at a place that it may enter, and no other process; memory, file size and time are
  limited.

An ssh address needs this machine's keys, so there git runs as we do; such an address can hold no
option for ssh. What a login is lies in memory that only that mount namespace has, and is told to
the one host that it is for.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from forkyard.base.process import Finished, run_async
from forkyard.errors import UserError, WorkspaceError
from forkyard.shim.ids import CLONER_USER_ID
from forkyard.workspace.owners import at_home, home_of
from forkyard.workspace.trusted_git import GIT_VARIABLES, SAFE_OPTIONS, last_words

CLONE_SECONDS = 3600.0
PROTOCOLS = "https:http:ssh:git"
MEMORY_BYTES = 16 * 1024**3
"""Of addresses: git maps whole packs. A list of references without an end stops there."""
KEPT_FREE_BYTES = 1024**3
_PLACE = "/mnt/repo"
_OPTIONS = (
    "-c", "credential.helper=", "-c", "submodule.recurse=false",
    "-c", "fetch.recurseSubmodules=false", "-c", "transfer.bundleURI=false",
    "-c", "protocol.version=2",
)  # fmt: skip
_ENTER = """
mount -t tmpfs -o size=1m,mode=755,nosuid,nodev,noexec none /mnt &&
mkdir /mnt/repo /mnt/login && mount --bind -- "$1" /mnt/repo &&
{ mount -t proc proc /proc 2>/dev/null || mount -t tmpfs -o ro,size=4k none /proc; } &&
( umask 077 && cat > /mnt/login/answer ) && chown -R "$2:$2" /mnt/login &&
shift 2 && cd / && exec "$@" </dev/null
"""
_HELPER = (
    "!f() { test \"$1\" = get || exit 0; p=; h=; while IFS='=' read -r k v; do case $k in"
    " protocol) p=$v;; host) h=$v;; esac; done;"
    ' test "$p://$h" = "$FORKYARD_LOGIN" && cat /mnt/login/answer; }; f'
)
"""Told to the host it is for and to no other: not where a server redirects to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Login:
    """A user name and a password. Neither is shown where this is printed."""

    username: str = field(repr=False)
    password: str = field(repr=False)
    secret: str = ""
    """The secret's name, for hints."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What of a remote repository is taken."""

    branch: str | None = None
    checkout: str | None = None
    depth: int | None = None
    submodules: bool = False


async def clone(
    url: str,
    target: Path,
    say: Callable[[str], None],
    *,
    wanted: Wanted | None = None,
    login: Login | None = None,
    memory_bytes: int = MEMORY_BYTES,
) -> None:
    """Clone into a folder that does not exist yet; its files belong to whoever git ran as.

    Args:
        url: Checked to be one of the known schemes.
        target: Its parent exists.
        say: Takes sentences for the build log.
        wanted: By default the remote's own branch with all history.
        login: For http and https.
        memory_bytes: Most that git may map.

    Raises:
        UserError: A login where none can be used.
        WorkspaceError: Cloning failed, or took too much of something.

    Cancellation:
        Git is killed; the target is left half-made.
    """
    wanted = wanted or Wanted()
    jail = _Jail(url=url, target=target, login=login, memory_bytes=memory_bytes)
    say(f"cloning {url}" + (f" with secret {login.secret}" if login else ""))
    if login is not None and url.startswith("http://"):
        say("the password travels unencrypted: the address is http, not https")
    target.mkdir()  # noqa: ASYNC240 - one system call
    jail.prepare()
    options = ["--no-recurse-submodules"]
    if wanted.branch is not None:
        options.append(f"--branch={wanted.branch}")
    if wanted.depth is not None:
        options.append(f"--depth={wanted.depth}")
    if wanted.checkout is not None:
        options.append("--no-checkout")
    await jail.git_or_error(
        "clone", "-q", "--template=", "--no-hardlinks", *options, "--", url, jail.place
    )
    if wanted.checkout is not None:
        await _check_out(jail, wanted, wanted.checkout)
    if wanted.submodules:
        say("its submodules are fetched")
        depth = [] if wanted.depth is None else [f"--depth={wanted.depth}"]
        await jail.git_or_error(
            "-C", jail.place, "submodule", "-q", "update", "--init", "--recursive",
            "--checkout", *depth, protocols=jail.submodule_protocols,
        )  # fmt: skip


async def _check_out(jail: _Jail, wanted: Wanted, name: str) -> None:
    """Check a branch, tag or commit out; one that the clone has not is fetched."""
    inside = ("-C", jail.place)
    if await jail.has(f"refs/remotes/origin/{name}"):
        await jail.git_or_error(*inside, "checkout", "-q", "-B", name, "--track", f"origin/{name}")
        return
    if not await jail.has(f"{name}^{{commit}}"):
        depth = [] if wanted.depth is None else [f"--depth={wanted.depth}"]
        await jail.git_or_error(*inside, "fetch", "-q", *depth, "origin", name)
        name = "FETCH_HEAD"
    await jail.git_or_error(*inside, "checkout", "-q", "--detach", name)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Jail:
    """Where git runs for one clone."""

    url: str
    target: Path
    login: Login | None
    memory_bytes: int

    @property
    def is_lowered(self) -> bool:
        """Whether git has a user of its own; an ssh address needs our keys."""
        return not self.url.startswith("ssh://") and os.geteuid() == 0

    @property
    def place(self) -> str:
        """Where git finds the folder."""
        return _PLACE if self.is_lowered else str(self.target)

    @property
    def submodule_protocols(self) -> str:
        """Whoever has our keys speaks nothing else; whoever has not has no use for ssh."""
        return "https:http:git" if self.is_lowered else "ssh"

    def prepare(self) -> None:
        """Give the folder to whoever git runs as."""
        if self.is_lowered:
            os.chown(self.target, CLONER_USER_ID, CLONER_USER_ID)
        elif self.login is not None:
            raise UserError(
                f"cannot clone {self.url} with a login: that is for http and https addresses",
                hint="Remove `authentication`; an ssh address uses this machine's keys.",
            )

    async def has(self, name: str) -> bool:
        """Say whether the clone has an object of that name."""
        done = await self._git(
            "-C", self.place, "rev-parse", "-q", "--verify", "--end-of-options", name
        )
        return done.succeeded

    async def git_or_error(self, *arguments: str, protocols: str = PROTOCOLS) -> None:
        """Run git.

        Raises:
            WorkspaceError: It failed: git's own last words, and what to do about a login.
        """
        done = await self._git(*arguments, protocols=protocols)
        if done.succeeded:
            return
        words = last_words(done.stderr)
        raise WorkspaceError(f"cannot clone {self.url}: {words}", hint=self._hint(words))

    def _hint(self, words: str) -> str:
        asks = any(one in words for one in ("Authentication failed", "could not read Username"))
        if asks and self.login is not None:
            return f"Set the password anew: `forkyard secret set {self.login.secret}`."
        if asks:
            return "Give a login: `authentication: {http: {username, password: {fromSecret}}}`."
        return "Clone it by hand and give the folder's path where it needs a proxy."

    async def _git(self, *arguments: str, protocols: str = PROTOCOLS) -> Finished:
        limits = [
            "prlimit", f"--as={self.memory_bytes}", f"--fsize={_room(self.target)}", "--core=0",
        ]  # fmt: skip
        helper = [] if self.login is None else ["-c", f"credential.helper={_HELPER}"]
        git = ["git", *SAFE_OPTIONS, *_OPTIONS, *helper, *arguments]
        variables = {
            **GIT_VARIABLES,
            "GIT_SSH_COMMAND": "ssh -oBatchMode=yes",
            "GIT_ALLOW_PROTOCOL": protocols,
            "GIT_TEMPLATE_DIR": "",
        }
        if not self.is_lowered:
            variables["HOME"] = home_of(os.geteuid())
            return await run_async(
                [*at_home(), *limits, *git], variables=variables, timeout_seconds=CLONE_SECONDS
            )
        answer = b""
        if self.login is not None:
            parts = urlsplit(self.url)
            variables["FORKYARD_LOGIN"] = f"{parts.scheme}://{parts.netloc}"
            answer = f"username={self.login.username}\npassword={self.login.password}\n".encode()
        return await run_async(
            [*_lowered(self.target), *limits, *git],
            variables=variables,
            stdin=answer,
            timeout_seconds=CLONE_SECONDS,
        )


def _lowered(target: Path) -> list[str]:
    user = [f"--reuid={CLONER_USER_ID}", f"--regid={CLONER_USER_ID}", "--clear-groups"]
    nothing = ["--no-new-privs", "--bounding-set=-all", "--inh-caps=-all"]
    return [
        "unshare", "--mount", "--propagation=private", "--pid", "--fork", "--kill-child", "--",
        "/bin/sh", "-c", _ENTER, "sh", str(target), str(CLONER_USER_ID),
        "setpriv", *user, *nothing, "--",
    ]  # fmt: skip


def _room(target: Path) -> int:
    return max(KEPT_FREE_BYTES, shutil.disk_usage(target).free - KEPT_FREE_BYTES)
