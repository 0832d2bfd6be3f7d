"""Private repositories: the login reaches the one host that it is for, and nothing else."""

from __future__ import annotations

import asyncio
import base64
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from forkyard.config import Layout
from forkyard.errors import UserError, WorkspaceError
from forkyard.model.workspace import Credentials, RepositorySource
from forkyard.workspace.clone import Login, clone
from forkyard.workspace.repository import Importer
from git_server import GitServer
from station import git, make_repository

pytestmark = pytest.mark.anyio

PASSWORD = "s3cr3t-of-a-private-repository"  # noqa: S105 - the canary
FORMS = (PASSWORD.encode(), base64.b64encode(f"reader:{PASSWORD}".encode()))
LOGIN = Credentials(username="reader", secret="git.read.token")  # noqa: S106 - its name


@pytest.fixture
def server(tmp_path: Path) -> Iterator[GitServer]:
    """Serve repositories, those below `private` for whoever has the password."""
    found = GitServer(tmp_path / "served", {"private": ("reader", PASSWORD)})
    yield found
    found.close()


@pytest.fixture
def importer(tmp_path: Path) -> Importer:
    """Give an importer that knows the password."""
    (tmp_path / "state").mkdir(mode=0o700)
    return Importer(Layout(tmp_path / "state"), {"git.read.token": PASSWORD}.get)


@pytest.fixture
def layer(tmp_path: Path) -> Path:
    """Give a folder that nobody but us may enter, as that of layers is."""
    folder = tmp_path / "closed"
    folder.mkdir(mode=0o700)
    return folder


def holders(root: Path) -> list[Path]:
    """List the files that hold the password in any of its forms."""
    found = []
    for path in root.rglob("*"):
        if path.is_file() and not path.is_symlink():
            content = path.read_bytes()
            if any(form in content for form in FORMS):
                found.append(path)
    return found


async def test_a_private_repository_is_cloned_and_the_password_is_nowhere(
    importer: Importer, server: GitServer, tmp_path: Path, layer: Path
) -> None:
    """Neither in a file of the clone nor in what is said; the server was really asked with it."""
    source, said = make_repository(tmp_path / "src"), list[str]()
    url = server.publish(source, "private.git")
    asked = RepositorySource(url=url, credentials=LOGIN)
    await importer.take(asked, layer / "repo", said.append)
    assert git(layer / "repo", "rev-parse", "HEAD") == git(source, "rev-parse", "HEAD")
    assert any(FORMS[1].decode() in given for _, given in server.asked)
    assert holders(layer) == []
    assert PASSWORD not in " ".join(said)
    assert git(layer / "repo", "remote", "get-url", "origin").strip() == url
    (layer / "detector").write_bytes(b"x" + FORMS[1])
    assert holders(layer) == [layer / "detector"]


async def test_a_login_is_asked_for_when_it_is_missing_or_wrong(
    importer: Importer, server: GitServer, tmp_path: Path, layer: Path
) -> None:
    """The hint names what to write, or which secret to set."""
    url = server.publish(make_repository(tmp_path / "src"), "private.git")
    with pytest.raises(WorkspaceError, match="cannot clone http") as without:
        await importer.take(RepositorySource(url=url), layer / "a", lambda _: None)
    assert "authentication" in (without.value.hint or "")
    wrong = Login(username="reader", password="not-the-password", secret="git.x")  # noqa: S106 - nobody's
    with pytest.raises(WorkspaceError, match="Authentication failed") as refused:
        await clone(url, layer / "b", lambda _: None, login=wrong)
    assert "forkyard secret set git.x" in (refused.value.hint or "")
    assert "not-the-password" not in str(refused.value)
    unset = Credentials(username="reader", secret="none.such")  # noqa: S106 - its name
    with pytest.raises(UserError, match=r"secret none\.such is not set"):
        await importer.take(
            RepositorySource(url=url, credentials=unset), layer / "c", lambda _: None
        )


async def test_a_login_is_not_told_to_a_host_that_the_server_redirects_to(
    importer: Importer, tmp_path: Path, layer: Path
) -> None:
    """Another port is another host: it asks for a login and gets none."""
    thief = GitServer(tmp_path / "thief", {"": ("nobody", "knows-this")})
    first = GitServer(tmp_path / "first", {})

    def redirect(request: object) -> None:
        request.send_response(302)  # type: ignore[attr-defined]
        request.send_header("Location", f"{thief.address}{request.path}")  # type: ignore[attr-defined]
        request.end_headers()  # type: ignore[attr-defined]

    first.answer = redirect  # type: ignore[method-assign]
    try:
        with pytest.raises(WorkspaceError, match="cannot clone"):
            await importer.take(
                RepositorySource(url=f"{first.address}/r.git", credentials=LOGIN),
                layer / "repo",
                lambda _: None,
            )
    finally:
        first.close()
        thief.close()
    assert thief.asked
    assert {given for _, given in thief.asked} == {""}


async def test_a_submodule_gets_the_login_of_its_own_host_only(
    importer: Importer, server: GitServer, tmp_path: Path, layer: Path
) -> None:
    """Private submodules of the same host come along; no secret stays in .git/modules."""
    inner, outer = make_repository(tmp_path / "inner"), make_repository(tmp_path / "outer")
    server.publish(inner, "private-inner.git")
    git(outer, "-c", "protocol.file.allow=always", "submodule", "add", "-q", str(inner), "sub")
    git(outer, "config", "-f", ".gitmodules", "submodule.sub.url", "../private-inner.git")
    git(outer, "commit", "-qam", "sub")
    asked = RepositorySource(
        url=server.publish(outer, "private.git"), credentials=LOGIN, submodules=True
    )
    await importer.take(asked, layer / "repo", lambda _: None)
    assert git(layer / "repo/sub", "rev-parse", "HEAD") == git(inner, "rev-parse", "HEAD")
    assert holders(layer) == []
    assert list((layer / "repo/.git/modules/sub").glob("hooks/*")) == []


@pytest.mark.parametrize(
    "url",
    [
        "file://{inner}",
        "{inner}",
        "ext::sh -c 'touch {canary}'",
        "ssh://-oProxyCommand=touch${{IFS}}{canary}/x",
        "-oProxyCommand=touch {canary}",
        "x@-oProxyCommand=touch${{IFS}}{canary}:x",
    ],
)
async def test_a_hostile_submodule_is_refused_when_submodules_are_wanted(
    importer: Importer, server: GitServer, tmp_path: Path, layer: Path, url: str
) -> None:
    """Neither files of this machine nor options for ssh."""
    inner, outer = make_repository(tmp_path / "inner"), make_repository(tmp_path / "outer")
    canary = tmp_path / "canary"
    tmp_path.chmod(0o777)
    git(outer, "-c", "protocol.file.allow=always", "submodule", "add", "-q", str(inner), "sub")
    hostile = url.format(inner=inner, canary=canary)
    git(outer, "config", "-f", ".gitmodules", "submodule.sub.url", hostile)
    git(outer, "config", "-f", ".gitmodules", "submodule.sub.update", f"!touch {canary}")
    git(outer, "commit", "-qam", "sub")
    asked = RepositorySource(url=server.publish(outer, "open.git"), submodules=True)
    with pytest.raises(WorkspaceError, match="cannot clone"):
        await importer.take(asked, layer / "repo", lambda _: None)
    assert not canary.exists()
    assert not (layer / "repo/.git/modules/sub/objects").exists()


async def test_branch_depth_and_commit_are_honoured_when_a_url_is_cloned(
    importer: Importer, server: GitServer, tmp_path: Path, layer: Path
) -> None:
    """Also a commit that a shallow clone has not."""
    source = make_repository(tmp_path / "src")
    git(source, "branch", "side", "HEAD~1")
    git(source, "tag", "v1", "HEAD~1")
    url, old = server.publish(source, "open.git"), git(source, "rev-parse", "HEAD~1")
    git(server.folder / "open.git", "config", "uploadpack.allowAnySHA1InWant", "true")
    for number, (asked, branch) in enumerate(
        (
            (RepositorySource(url=url, branch="side"), "side"),
            (RepositorySource(url=url, checkout="side"), "side"),
            (RepositorySource(url=url, checkout="v1"), ""),
            (RepositorySource(url=url, checkout=old, depth=1), ""),
        )
    ):
        target = layer / f"repo{number}"
        await importer.take(asked, target, lambda _: None)
        assert git(target, "rev-parse", "HEAD") == old
        assert git(target, "branch", "--show-current") == branch
        assert git(target, "status", "--porcelain") == ""
    assert git(layer / "repo3", "rev-list", "--count", "HEAD") == "1"
    with pytest.raises(WorkspaceError, match="cannot clone"):
        await importer.take(RepositorySource(url=url, checkout="v9"), layer / "no", lambda _: None)


async def test_no_process_shows_the_password_while_git_waits(layer: Path) -> None:
    """Looked at while the server keeps it waiting: no argument and no variable anywhere has it."""
    login = Login(username="reader", password=PASSWORD, secret="git.x")  # noqa: S106 - its name
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"http://127.0.0.1:{listener.getsockname()[1]}/r"
        waiting = asyncio.ensure_future(clone(address, layer / "repo", lambda _: None, login=login))
        try:
            connection, _ = await asyncio.to_thread(listener.accept)
            with connection:
                seen = await asyncio.to_thread(_all_processes)
        finally:
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
    assert any(b"remote-http" in one for one in seen)
    assert [one[:200] for one in seen if any(form in one for form in FORMS)] == []


def _all_processes() -> list[bytes]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        for name in ("cmdline", "environ"):
            try:
                found.append((folder / name).read_bytes())
            except OSError:
                continue
    return found
