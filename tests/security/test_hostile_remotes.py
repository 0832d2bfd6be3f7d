"""Cloning from an address of a stranger: nothing of theirs runs here, nothing is exhausted."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from forkyard.config import Layout
from forkyard.errors import ConfigError, WorkspaceError
from forkyard.model.workspace import RepositorySource
from forkyard.shim.ids import CLONER_USER_ID, STORAGE_USER_ID
from forkyard.wire.templatefile import parse_template
from forkyard.workspace.clone import clone
from forkyard.workspace.repository import Importer
from station import git, make_repository

pytestmark = pytest.mark.anyio


class Remote:
    """A folder of bare repositories behind HTTP."""

    def __init__(self, folder: Path, handler: type[BaseHTTPRequestHandler] | None = None) -> None:
        """Listen on a port of this machine."""
        self.folder = folder
        folder.mkdir(exist_ok=True)

        class Quiet(SimpleHTTPRequestHandler):
            def __init__(self, *arguments: object, **options: object) -> None:
                super().__init__(*arguments, directory=str(folder), **options)  # type: ignore[arg-type]

            def log_message(self, *_: object) -> None:
                return

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), handler or Quiet)
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self.thread.start()
        self.address = f"http://127.0.0.1:{self.server.server_address[1]}"

    def publish(self, source: Path, name: str = "r.git") -> str:
        """Serve a repository; give its address."""
        bare = self.folder / name
        git(source, "clone", "-q", "--bare", str(source), str(bare))
        git(bare, "update-server-info")
        return f"{self.address}/{name}"

    def close(self) -> None:
        """Let go of the port."""
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def remote(tmp_path: Path) -> Iterator[Remote]:
    """Serve what tests publish."""
    found = Remote(tmp_path / "served")
    yield found
    found.close()


@pytest.fixture
def importer(tmp_path: Path) -> Importer:
    """Give an importer whose own state lies beside."""
    (tmp_path / "state").mkdir(mode=0o700)
    return Importer(Layout(tmp_path / "state"))


@pytest.fixture
def layer(tmp_path: Path) -> Path:
    """Give a folder that nobody but us may enter, as that of layers is."""
    folder = tmp_path / "closed"
    folder.mkdir(mode=0o700)
    return folder


async def test_a_repository_is_cloned_when_nothing_is_wrong_with_it(
    importer: Importer, remote: Remote, tmp_path: Path, layer: Path
) -> None:
    """With remote and branches; every file is the sandbox's user's; no hook, no template."""
    source, said = make_repository(tmp_path / "src"), list[str]()
    address, target = remote.publish(source), layer / "repo"
    assert await importer.take(RepositorySource(url=address), target, said.append) is None
    assert git(target, "rev-parse", "origin/main") == git(source, "rev-parse", "HEAD")
    assert git(target, "remote", "get-url", "origin") == address
    assert git(target, "status", "--porcelain") == ""
    assert not (target / ".git/hooks").exists()
    assert {path.lstat().st_uid for path in (target, *target.rglob("*"))} == {STORAGE_USER_ID}
    with pytest.raises(WorkspaceError, match="cannot clone http"):
        await importer.take(
            RepositorySource(url=f"{remote.address}/absent.git"), layer / "x", said.append
        )


ADDRESSES = (
    "ext::sh -c 'touch {canary}'",
    "fd::0",
    "file://{source}",
    "{source}",
    "--upload-pack=touch {canary}",
    "-utouch {canary}",
    "ssh://-oProxyCommand=touch${{IFS}}{canary}/x",
    "ssh://x@-oProxyCommand=touch${{IFS}}{canary}/x",
    "git://-oProxyCommand=touch${{IFS}}{canary}/x",
    "http::ext::sh -c 'touch {canary}'",
)


@pytest.mark.parametrize("address", ADDRESSES)
async def test_an_address_runs_nothing(
    importer: Importer, tmp_path: Path, layer: Path, address: str
) -> None:
    """Neither as a template's, nor where one came to git all the same."""
    source, canary = make_repository(tmp_path / "src"), tmp_path / "canary"
    url = address.format(canary=canary, source=source)
    with pytest.raises(ConfigError):
        parse_template(f"repository: {{url: {url!r}}}", "t.yaml")
    with pytest.raises(WorkspaceError, match="cannot clone"):
        await importer.take(RepositorySource(url=url), layer / "repo", lambda _: None)
    assert not canary.exists()


def _submodule(source: Path, canary: Path) -> None:
    (source / ".gitmodules").write_text(
        f'[submodule "s"]\n\tpath = s\n\turl = ext::sh -c "touch {canary}"\n'
        f"\tupdate = !touch {canary}\n"
    )
    head = git(source, "rev-parse", "HEAD").strip()
    git(source, "add", ".gitmodules")
    git(source, "update-index", "--add", "--cacheinfo", f"160000,{head},s")
    git(source, "commit", "-q", "-m", "submodule")


def _attributes(source: Path, canary: Path) -> None:
    (source / ".gitattributes").write_text("* filter=evil diff=evil merge=evil\n")
    (source / "gitconfig").write_text(
        f'[filter "evil"]\n\tsmudge = touch {canary}\n\tprocess = touch {canary}\n'
        f"[core]\n\tfsmonitor = touch {canary}\n\thooksPath = hooks\n"
    )
    (source / "hooks").mkdir()
    for hook in ("post-checkout", "reference-transaction", "post-index-change"):
        (source / "hooks" / hook).write_text(f"#!/bin/sh\ntouch {canary}\n")
        (source / "hooks" / hook).chmod(0o755)
    git(source, "add", "-A")
    git(source, "commit", "-q", "-m", "settings")


def _in_git_data(name: str) -> Callable[[Path, Path], None]:
    def build(source: Path, canary: Path) -> None:
        blob = _object(source, "blob", f"#!/bin/sh\ntouch {canary}\n")
        hooks = _object(source, "tree", entries=f"100755 blob {blob}\tpost-checkout\n")
        inner = _object(source, "tree", entries=f"040000 tree {hooks}\thooks\n")
        top = _object(source, "tree", entries=f"040000 tree {inner}\t{name}\n")
        commit = git(source, "commit-tree", top, "-m", "x").strip()
        git(source, "update-ref", "refs/heads/main", commit)

    return build


def _through_a_link(source: Path, canary: Path) -> None:
    blob = _object(source, "blob", f"#!/bin/sh\ntouch {canary}\n")
    link = _object(source, "blob", ".git/hooks")
    inner = _object(source, "tree", entries=f"100755 blob {blob}\tpost-checkout\n")
    # The same name as a link and, in the other case, as a folder: a trick on folding file systems.
    entries = f"120000 blob {link}\ta\n040000 tree {inner}\tA\n"
    top = _object(source, "tree", entries=entries)
    commit = git(source, "commit-tree", top, "-m", "x").strip()
    git(source, "update-ref", "refs/heads/main", commit)


def _object(source: Path, kind: str, content: str = "", *, entries: str = "") -> str:
    command = ["hash-object", "-w", "--stdin"] if kind == "blob" else ["mktree"]
    done = subprocess.run(
        ["git", *command], cwd=source, input=content or entries, text=True, check=True,
        capture_output=True,
    )  # fmt: skip
    return done.stdout.strip()


TREES = {
    "a submodule that wants to be updated by a command": _submodule,
    "attributes, settings and hooks in the tree": _attributes,
    "hooks below .GIT": _in_git_data(".GIT"),
    "hooks below git~1": _in_git_data("git~1"),
    "hooks below a .git that folds": _in_git_data(".g\u200cit"),
    "a file below a link to .git": _through_a_link,
}


@pytest.mark.parametrize("build", TREES.values(), ids=TREES)
async def test_a_tree_runs_nothing(
    importer: Importer,
    remote: Remote,
    tmp_path: Path,
    layer: Path,
    build: Callable[[Path, Path], None],
) -> None:
    """Cloned as data, or refused by git; the canary is never touched."""
    source, canary = make_repository(tmp_path / "src"), tmp_path / "canary"
    tmp_path.chmod(0o777)
    build(source, canary)
    try:
        await importer.take(
            RepositorySource(url=remote.publish(source)), layer / "repo", lambda _: None
        )
    except WorkspaceError:
        pass
    else:
        assert not (layer / "repo/.git/hooks").exists()
        assert list((layer / "repo").glob("s/*")) == []
    assert not canary.exists()


@pytest.mark.parametrize("place", ["file:///etc/passwd", "ext::sh -c id", "/etc/passwd"])
async def test_a_redirect_leads_to_no_other_protocol(
    importer: Importer, tmp_path: Path, layer: Path, place: str
) -> None:
    """Whatever the server says, only the listed protocols are spoken."""

    class Redirect(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(302)
            self.send_header("Location", place)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            return

    remote = Remote(tmp_path / "served", Redirect)
    try:
        with pytest.raises(WorkspaceError, match="cannot clone"):
            await importer.take(
                RepositorySource(url=f"{remote.address}/r"), layer / "repo", lambda _: None
            )
    finally:
        remote.close()
    assert list((layer / "repo").iterdir()) == []


async def test_references_without_an_end_stop_at_the_memory_limit(
    tmp_path: Path, layer: Path
) -> None:
    """Git dies of it, this machine does not."""

    class Endless(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "application/x-git-upload-pack-advertisement")
            self.end_headers()
            self.wfile.write(b"001e# service=git-upload-pack\n0000")
            number = 0
            try:
                while True:
                    lines = b""
                    for _ in range(1000):
                        number += 1
                        line = b"%040x refs/heads/%s%d\n" % (number, b"x" * 900, number)
                        lines += b"%04x%s" % (len(line) + 4, line)
                    self.wfile.write(lines)
            except OSError:
                return

        def log_message(self, *_: object) -> None:
            return

    remote = Remote(tmp_path / "served", Endless)
    try:
        with pytest.raises(WorkspaceError, match="cannot clone"):
            await clone(
                f"{remote.address}/r", layer / "repo", lambda _: None, memory_bytes=256 * 1024**2
            )
    finally:
        remote.close()


async def test_git_has_no_right_while_it_reads_a_strangers_bytes(layer: Path) -> None:
    """Looked at while the server keeps it waiting: user, capabilities, environment, limits."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"http://127.0.0.1:{listener.getsockname()[1]}/r"
        waiting = asyncio.ensure_future(clone(address, layer / "repo", lambda _: None))
        try:
            connection, _ = await asyncio.to_thread(listener.accept)
            with connection:
                (found,) = await asyncio.to_thread(_helpers, address)
                status = dict(
                    line.split(":\t", 1) for line in (found / "status").read_text().splitlines()
                    if ":\t" in line
                )  # fmt: skip
                environment = (found / "environ").read_bytes().decode().split("\0")
        finally:
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
    assert status["Uid"].split() == [str(CLONER_USER_ID)] * 4
    assert int(status["CapEff"], 16) == int(status["CapBnd"], 16) == 0
    assert status["NoNewPrivs"] == "1"
    assert status["Groups"].strip() == ""
    assert "HOME=/nonexistent" in environment
    assert not [one for one in environment if one.startswith(("FORKYARD", "PYTHON"))]


def _helpers(address: str) -> list[Path]:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        found = [
            path
            for path in Path("/proc").glob("[0-9]*")
            if b"remote-http" in _command(path) and address.encode() in _command(path)
        ]
        if found:
            return found[-1:]
        time.sleep(0.02)
    return []


def _command(path: Path) -> bytes:
    try:
        return (path / "cmdline").read_bytes()
    except OSError:
        return b""


def test_the_environment_of_this_process_is_not_what_git_gets() -> None:
    """A guard for the test above: there is something to leave out here."""
    assert os.environ.get("PYTHONPATH")
