"""Archives of agents: hostile until their hash fits, and not believed after that either."""

from __future__ import annotations

import hashlib
import io
import os
import stat
import tarfile
import threading
import zipfile
from pathlib import Path

import pytest

from forkyard.agents.interface import Package
from forkyard.errors import WorkspaceError
from forkyard.workspace import agent_archives
from forkyard.workspace.agent_archives import Abandoned, Unpacker


def tar_of(folder: Path, *members: tarfile.TarInfo, content: bytes = b"x") -> Path:
    """Write an archive."""
    path = folder / "a.tgz"
    with tarfile.open(path, "w:gz") as archive:
        for member in members:
            if member.isreg():
                member.size = len(content)
            archive.addfile(member, io.BytesIO(content) if member.isreg() else None)
    return path


def member_of(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    """Give one entry."""
    member = tarfile.TarInfo(name)
    member.type, member.linkname, member.mode = kind, link, 0o4755
    return member


def package_of(path: Path, *, strip: int = 1, keep: tuple[str, ...] = ()) -> Package:
    """Pin an archive as it is."""
    return Package(
        registry="npm",
        name="a",
        version="1",
        file=path.name,
        sha512=hashlib.sha512(path.read_bytes()).hexdigest(),
        strip=strip,
        keep=keep,
    )


def unpacker_for(folder: Path) -> Unpacker:
    """Give one for an empty folder."""
    target = folder / "target"
    target.mkdir()
    return Unpacker(target, threading.Event())


def test_files_are_plain_when_they_are_unpacked(tmp_path: Path) -> None:
    """Leading folders are dropped, bits that change users too, contents and hashes are right."""
    path = tar_of(tmp_path, member_of("package/bin/tool"), content=b"hello")
    unpacker = unpacker_for(tmp_path)

    unpacker.unpack(package_of(path), path)

    made = tmp_path / "target" / "bin" / "tool"
    assert made.read_bytes() == b"hello"
    assert stat.S_IMODE(made.stat().st_mode) == 0o755
    assert [(one.path, one.size, one.is_executable) for one in unpacker.files] == [
        ("bin/tool", 5, True)
    ]


def test_nothing_is_unpacked_when_the_hash_is_another(tmp_path: Path) -> None:
    """It is not even opened as an archive."""
    path = tmp_path / "a.tgz"
    path.write_bytes(b"not an archive")
    package = package_of(path)
    path.write_bytes(b"something else")

    with pytest.raises(WorkspaceError, match="SHA-512"):
        unpacker_for(tmp_path).unpack(package, path)


def test_an_archive_is_refused_when_it_is_a_pipe(tmp_path: Path) -> None:
    """Nobody waits for what may never come."""
    path = tar_of(tmp_path, member_of("package/a"))
    package = package_of(path)
    path.unlink()
    os.mkfifo(path)

    with pytest.raises(WorkspaceError, match="no ordinary file"):
        unpacker_for(tmp_path).unpack(package, path)


@pytest.mark.parametrize(
    "member",
    [
        member_of("package/../../etc/passwd"),
        member_of("/etc/passwd"),
        member_of("package/link", tarfile.SYMTYPE, "/etc"),
        member_of("package/link", tarfile.LNKTYPE, "package/a"),
        member_of("package/pipe", tarfile.FIFOTYPE),
        member_of("package/device", tarfile.CHRTYPE),
        member_of("package/" + "d/" * 600 + "f"),
        member_of("package/back\\slash"),
    ],
    ids=["up", "absolute", "symlink", "hardlink", "fifo", "device", "long", "backslash"],
)
def test_an_archive_is_refused_when_an_entry_is_no_ordinary_file(
    tmp_path: Path, member: tarfile.TarInfo
) -> None:
    """Links, devices and names that lead elsewhere are refused though the hash fits."""
    path = tar_of(tmp_path, member)

    with pytest.raises(WorkspaceError, match=r"cannot install a\.tgz"):
        unpacker_for(tmp_path).unpack(package_of(path), path)

    assert [one for one in (tmp_path / "target").rglob("*") if not one.is_dir()] == []


def test_a_wheel_is_refused_when_an_entry_is_a_link(tmp_path: Path) -> None:
    """A zip archive can hold links too."""
    path = tmp_path / "a-1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        link = zipfile.ZipInfo("lib/link")
        link.external_attr = (stat.S_IFLNK | 0o777) << 16
        archive.writestr(link, "/etc")

    with pytest.raises(WorkspaceError, match="no ordinary file"):
        unpacker_for(tmp_path).unpack(package_of(path, strip=0), path)


def test_an_archive_is_refused_when_two_entries_have_one_name(tmp_path: Path) -> None:
    """The second would replace what was hashed as the first."""
    path = tar_of(tmp_path, member_of("package/a"), member_of("other/./a"))

    with pytest.raises(WorkspaceError, match="there already"):
        unpacker_for(tmp_path).unpack(package_of(path), path)


def test_an_archive_is_refused_when_it_unpacks_to_too_much(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A small file may hold many bytes and many names."""
    path = tar_of(tmp_path, member_of("p/a"), member_of("p/b"), content=b"\0" * 5000)
    monkeypatch.setattr(agent_archives, "MOST_BYTES", 8000)

    with pytest.raises(WorkspaceError, match="8000 bytes"):
        unpacker_for(tmp_path).unpack(package_of(path), path)

    monkeypatch.setattr(agent_archives, "MOST_FILES", 1)
    with pytest.raises(WorkspaceError, match="more than 1 files"):
        Unpacker(tmp_path / "target" / "again", threading.Event()).unpack(package_of(path), path)


def test_only_what_is_wanted_is_kept_when_a_package_says_so(tmp_path: Path) -> None:
    """Folders and files by name, not by beginning."""
    path = tar_of(
        tmp_path, member_of("package/bin/a"), member_of("package/binary"), member_of("package/c")
    )
    unpacker = unpacker_for(tmp_path)

    unpacker.unpack(package_of(path, keep=("bin", "c")), path)

    assert sorted(one.path for one in unpacker.files) == ["bin/a", "c"]


@pytest.mark.parametrize("content", [b"", b"\x1f\x8b garbage", b"PK\x05\x06"])
def test_an_archive_is_refused_when_it_cannot_be_read(tmp_path: Path, content: bytes) -> None:
    """A pin of something else than an archive is a pin gone wrong."""
    path = tmp_path / "a.tgz"
    path.write_bytes(content)

    with pytest.raises(WorkspaceError, match=r"cannot install a\.tgz"):
        unpacker_for(tmp_path).unpack(package_of(path), path)


def test_it_is_given_up_when_nobody_waits_any_more(tmp_path: Path) -> None:
    """A cancelled installation does not go on for minutes."""
    path = tar_of(tmp_path, member_of("package/a"))
    unpacker = unpacker_for(tmp_path)
    unpacker._stop.set()

    with pytest.raises(Abandoned):
        unpacker.unpack(package_of(path), path)
