"""Copying between this machine and a workspace, whatever lies in either."""

from __future__ import annotations

import io
import json
import os
import stat
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from forkyard import BlockingClient
from forkyard.errors import WorkspaceError
from forkyard.wire.spaces import LimitsRequest
from living import forkyard, prepare


@pytest.fixture(scope="module")
def prepared(module_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Prepare a template."""
    prepare(module_home, tmp_path_factory.mktemp("copy"))
    return module_home


@pytest.fixture
def client(prepared: Path) -> Iterator[BlockingClient]:
    """Connect; afterwards no workspace is left."""
    with BlockingClient(prepared) as connected:
        yield connected
        for one in connected.workspaces.list():
            connected.workspaces.get(one.id).delete()


@pytest.fixture
def mine(client: BlockingClient) -> str:
    """Give a workspace."""
    return str(client.workspaces.create(template="t").id)


def listed(folder: Path) -> list[str]:
    """List everything below a folder."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def test_a_tree_goes_in_and_comes_out_as_it_was(
    client: BlockingClient, prepared: Path, mine: str, tmp_path: Path
) -> None:
    """Names of any bytes, modes, times, links inside, empty folders; not running at first."""
    source = tmp_path / "tree"
    (source / "a" / "deep").mkdir(parents=True)
    (source / "empty").mkdir()
    (source / "a" / "run.sh").write_text("#!/bin/sh\n")
    (source / "a" / "run.sh").chmod(0o755)
    os.utime(source / "a" / "run.sh", ns=(1, 1_234_567_890_123_456_789))
    (source / "a" / "new\nline").write_bytes(bytes(range(256)) * 5000)
    Path(os.fsdecode(os.fsencode(source) + b"/not\xffutf8")).write_text("x")
    (source / "link").symlink_to("a/run.sh")

    forkyard(prepared, "cp", source, f"{mine}:/workspace/repo")
    inside = client.workspaces.get(mine).exec(
        "stat -c '%U %a %Y' tree/a/run.sh; readlink tree/link; stat -c %U 'tree/a/new\nline'"
    )
    assert inside.stdout == b"workspace 755 1234567890\na/run.sh\nworkspace\n"
    done = forkyard(prepared, "cp", f"{mine}:/workspace/repo/tree", tmp_path / "back", "--json")

    told = json.loads(done.stdout)
    assert (told["files"], told["size_bytes"], told["left_out"]) == (3, 1_280_011, [])
    assert listed(tmp_path / "back") == listed(source)
    assert (tmp_path / "back/a/new\nline").read_bytes() == bytes(range(256)) * 5000
    assert stat.S_IMODE((tmp_path / "back/a/run.sh").stat().st_mode) == 0o755
    assert (tmp_path / "back/a/run.sh").stat().st_mtime_ns == 1_234_567_890_123_456_789
    assert (tmp_path / "back/link").readlink() == Path("a/run.sh")
    assert (tmp_path / "back").stat().st_uid == os.geteuid()


def test_one_file_goes_into_a_folder_or_gets_a_name(
    client: BlockingClient, prepared: Path, mine: str, tmp_path: Path
) -> None:
    """As cp does, in both directions."""
    (tmp_path / "one").write_text("1")

    forkyard(prepared, "cp", tmp_path / "one", f"{mine}:/workspace/repo")
    forkyard(prepared, "cp", tmp_path / "one", f"{mine}:/workspace/repo/two")
    forkyard(prepared, "cp", f"{mine}:/workspace/repo/two", tmp_path)
    forkyard(prepared, "cp", f"{mine}:/workspace/repo/one", tmp_path / "three")

    assert client.workspaces.get(mine).exec("cat one two").stdout == b"11"
    assert ((tmp_path / "two").read_text(), (tmp_path / "three").read_text()) == ("1", "1")
    nowhere = forkyard(prepared, "cp", f"{mine}:/workspace/repo/none", tmp_path, code=3)
    assert b"no such file" in nowhere.stderr
    nothing = forkyard(prepared, "cp", f"{mine}:/workspace/repo/one", tmp_path / "x/y", code=4)
    assert b"no such file" in nothing.stderr


HOSTILE = """\
ln -s /etc absolute; ln -s ../../../../outside climbing; ln -s . self
mkdir d; ln -s self/self/../../outside d/tricky; ln -s ../kept d/fine; echo k > kept
mkfifo pipe; python3 -c "import socket; socket.socket(socket.AF_UNIX).bind('socket')"
: > "$(printf 'esc\\033[2Jape')"
"""


def test_a_hostile_tree_reaches_nothing_but_its_own_copy(
    client: BlockingClient, prepared: Path, mine: str, tmp_path: Path
) -> None:
    """Links that lead out and what is no file are left out and told, escaped."""
    assert client.workspaces.get(mine).exec(f"mkdir t; cd t; {HOSTILE}").succeeded

    done = forkyard(prepared, "cp", f"{mine}:/workspace/repo/t", tmp_path / "out")

    assert listed(tmp_path / "out") == ["d", "d/fine", "esc\x1b[2Jape", "kept", "self"]
    for name in (b"absolute", b"climbing", b"d/tricky", b"pipe", b"socket"):
        assert b"Left out: " + name in done.stderr
    assert b"\x1b" not in done.stderr


def test_nothing_here_is_written_through_a_link(
    client: BlockingClient, prepared: Path, mine: str, tmp_path: Path
) -> None:
    """A link in a file's place is replaced, one in a folder's place is left alone and told."""
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").write_text("precious")
    target = tmp_path / "target"
    (target / "t").mkdir(parents=True)
    (target / "t" / "f").symlink_to(precious / "file")
    (target / "t" / "sub").symlink_to(precious)
    script = "mkdir -p t/sub; echo new > t/f; echo evil > t/sub/file; echo evil > t/sub/more"
    client.workspaces.get(mine).exec(script)

    done = forkyard(prepared, "cp", f"{mine}:/workspace/repo/t", target, code=10)

    assert listed(precious) == ["file"]
    assert (precious / "file").read_text() == "precious"
    assert not (target / "t" / "f").is_symlink()
    assert (target / "t" / "f").read_text() == "new\n"
    assert b"Not copied: t/sub: a link or file is in its way" in done.stderr or (
        b"Not copied: sub: a link or file is in its way" in done.stderr
    )


def test_links_inside_lead_nowhere_else(client: BlockingClient, mine: str, tmp_path: Path) -> None:
    """A link that is asked for is copied as a link, and what it names is not read."""
    client.workspaces.get(mine).exec("ln -s /etc/hostname secret; ln -s /etc/passwd kept")

    copied = client.workspaces.get(mine).get("/workspace/repo/secret", tmp_path)

    assert copied.left_out[0][0] == "secret"
    assert listed(tmp_path) == []


def test_a_sparse_file_stays_sparse_and_a_large_one_is_bounded(
    client: BlockingClient, mine: str, tmp_path: Path
) -> None:
    """Holes cost nothing here; content past the limit ends the copy, and leaves no half file."""
    workspace = client.workspaces.get(mine)
    workspace.exec("truncate -s 100G sparse; echo end >> sparse; head -c 9000000 /dev/zero > large")

    workspace.get("/workspace/repo/sparse", tmp_path)

    facts = (tmp_path / "sparse").stat()
    assert facts.st_size == 100 * 1024**3 + 4
    assert facts.st_blocks * 512 < 1 << 20
    with pytest.raises(WorkspaceError, match="larger than the limit"):
        workspace.get("/workspace/repo/large", tmp_path, most_bytes=1_000_000)
    assert listed(tmp_path) == ["sparse"]


def test_a_tar_stream_comes_out_and_goes_in(
    client: BlockingClient, prepared: Path, mine: str, tmp_path: Path
) -> None:
    """What GNU tar reads and writes; members of a hostile archive stay below the folder."""
    client.workspaces.get(mine).exec("mkdir -p t/sub; echo one > t/sub/one; ln -s sub/one t/l")
    done = forkyard(prepared, "cp", f"{mine}:/workspace/repo/t", "-")
    subprocess.run(["tar", "-xf", "-"], input=done.stdout, cwd=tmp_path, check=True)
    assert listed(tmp_path / "t") == ["l", "sub", "sub/one"]
    assert (tmp_path / "t/l").read_text() == "one\n"

    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name in ("../up", "/abs", "in/side"):
            member = tarfile.TarInfo(name)
            member.size = 2
            if "/" in name.strip("/.") and name.startswith("in"):
                folder = tarfile.TarInfo("in")
                folder.type = tarfile.DIRTYPE
                archive.addfile(folder)
            archive.addfile(member, io.BytesIO(b"ab"))
    done = forkyard(prepared, "cp", "-", f"{mine}:/workspace/repo", stdin=buffer.getvalue())

    assert b"Left out: ../up" in done.stderr
    outcome = client.workspaces.get(mine).exec("cat in/side abs; ls /workspace")
    assert outcome.stdout == b"abab" + b"repo\n"


def test_a_copy_that_failed_says_so_when_nothing_could_be_written(
    client: BlockingClient, prepared: Path, mine: str, tmp_path: Path
) -> None:
    """A script sees it by the exit status, a person by the thing and the reason."""
    (tmp_path / "notes").write_text("x")
    (tmp_path / "tree").mkdir()
    os.mkfifo(tmp_path / "tree" / "pipe")

    refused = forkyard(prepared, "cp", tmp_path / "notes", f"{mine}:/usr/notes", code=10)
    absent = forkyard(prepared, "cp", f"{mine}:/workspace/nope", tmp_path / "back", code=3)
    as_a_rule = forkyard(prepared, "cp", tmp_path / "tree", f"{mine}:/workspace/repo")

    assert f"Not copied: {tmp_path / 'notes'}: read-only file system".encode() in refused.stderr
    assert b"no such file or directory" in absent.stderr
    assert b"Left out: pipe: no file, folder or link" in as_a_rule.stderr
    assert client.workspaces.get(mine).exec("ls /workspace/repo/tree").stdout == b""


def test_what_does_not_fit_is_told(client: BlockingClient, tmp_path: Path) -> None:
    """A file larger than the workspace's disk limit is left out, with the reason."""
    workspace = client.workspaces.create(template="t", limits=LimitsRequest(disk_bytes=5_000_000))
    (tmp_path / "large").write_bytes(bytes(9_000_000))

    told = ""
    try:
        copied = workspace.put(tmp_path / "large", "/workspace/repo")
        told = copied.left_out[0][1]
    except WorkspaceError as error:
        told = error.message

    assert "larger than a file may be" in told or "disk" in told
    assert workspace.exec("ls -A | grep -v '^.git$'").stdout == b"file\n"
