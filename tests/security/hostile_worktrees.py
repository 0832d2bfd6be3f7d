"""Every hostile working tree that we know, as a table: what the agent does, what must come of it.

Each row starts from the same base (`base`), changed by a function that runs in the real overlay
view. Unless a row says otherwise its candidate must be complete, carry every byte that lies on
disk afterwards, and run nothing on the host.
"""

from __future__ import annotations

import os
import shutil
import socket
import stat
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from forkyard.model.candidate import CandidateStatus

COMPLETE = CandidateStatus.COMPLETE
INCOMPLETE = CandidateStatus.INCOMPLETE
INVALID = CandidateStatus.INVALID

Change = Callable[[Path], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One hostile tree and its expected result."""

    name: str
    change: Change
    status: CandidateStatus = COMPLETE
    changed: tuple[bytes, ...] | None = None
    """The exact paths that must differ from the base; None: not pinned here."""
    left_out: tuple[str, ...] = ()
    """Paths that must be listed as not carried."""
    ignored: tuple[str, ...] = ()
    """Entries that must be listed as ignored by the base's rules."""
    uncarried: frozenset[bytes] = frozenset()
    """Paths on disk that the tree must not hold."""


ROWS: list[Row] = []


def row(
    name: str,
    status: CandidateStatus = COMPLETE,
    *,
    changed: tuple[bytes, ...] | None = None,
    left_out: tuple[str, ...] = (),
    ignored: tuple[str, ...] = (),
    uncarried: tuple[bytes, ...] = (),
) -> Callable[[Change], Change]:
    """Enter a function in the table."""

    def enter(change: Change) -> Change:
        ROWS.append(
            Row(
                name=name,
                change=change,
                status=status,
                changed=changed,
                left_out=left_out,
                ignored=ignored,
                uncarried=frozenset(uncarried),
            )
        )
        return change

    return enter


def put(repository: Path, name: bytes, content: bytes = b"x\n") -> None:
    """Write a file by its bytes."""
    place = Path(os.fsdecode(os.fsencode(repository) + b"/" + name))
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(content)


def base(repository: Path) -> None:
    """Build the tree that every row starts from: attributes and ignore rules of every kind."""
    put(repository, b"a.txt", b"one\ntwo\nthree\n")
    put(repository, b"b.txt", b"".join(b"line %d\n" % n for n in range(40)))
    put(repository, b"crlf.bat", b"@echo off\r\necho hi\r\n")
    put(repository, b"no-eol.txt", b"no end of line")
    put(repository, b"binary.bin", bytes(range(256)) * 8)
    put(repository, b"ident.c", b"/* $Id$ */\nint x;\n")
    put(repository, b"wide.u16", "h\u00e9llo\n".encode("utf-16"))
    put(repository, b"asset.lfs", b"real bytes that a filter would swallow\n")
    put(repository, b"pointer.lfs", b"version https://git-lfs.github.com/spec/v1\nsize 3\n")
    put(repository, b"export.txt", b"$Format:%H$\n")
    put(repository, b"tracked.log", b"kept although the rules ignore it\n")
    put(repository, b"run.sh", b"#!/bin/sh\necho run\n")
    (repository / "run.sh").chmod(0o755)
    put(repository, b"dir/x.py", b"x = 1\n")
    put(repository, b"dir/sub/y.py", b"y = 2\n")
    put(repository, b"dir/.gitignore", b"*.tmp\n!keep.tmp\n")
    (repository / "link").symlink_to("a.txt")
    put(repository, b".gitignore", b"*.o\n*.log\nbuild/\n/only-root\n")
    put(
        repository,
        b".gitattributes",
        b"*.bat text eol=crlf\n*.c ident\n*.u16 text working-tree-encoding=UTF-16\n"
        b"*.lfs filter=lfs diff=lfs merge=lfs -text\nexport.txt export-ignore export-subst\n"
        b"*.nodiff -diff\n*.forced binary\n",
    )


# --- contents


@row("modify", changed=(b"a.txt",))
def _(repository: Path) -> None:
    put(repository, b"a.txt", b"one\nTWO\nthree\n")


@row("new", changed=(b"new/deep/file.txt",))
def _(repository: Path) -> None:
    put(repository, b"new/deep/file.txt", b"hello\n")


@row("delete", changed=(b"a.txt",))
def _(repository: Path) -> None:
    (repository / "a.txt").unlink()


@row("delete a directory", changed=(b"dir/.gitignore", b"dir/sub/y.py", b"dir/x.py"))
def _(repository: Path) -> None:
    shutil.rmtree(repository / "dir")


@row("empty file", changed=(b"empty",))
def _(repository: Path) -> None:
    put(repository, b"empty", b"")


@row("truncate", changed=(b"b.txt",))
def _(repository: Path) -> None:
    put(repository, b"b.txt", b"")


@row("executable bit set", changed=(b"a.txt",))
def _(repository: Path) -> None:
    (repository / "a.txt").chmod(0o755)


@row("executable bit cleared", changed=(b"run.sh",))
def _(repository: Path) -> None:
    (repository / "run.sh").chmod(0o644)


@row("executable bit of others only", changed=())
def _(repository: Path) -> None:
    (repository / "a.txt").chmod(0o655)


@row("binary", changed=(b"binary.bin", b"new.bin"))
def _(repository: Path) -> None:
    put(repository, b"binary.bin", bytes(range(255, -1, -1)) * 8)
    put(repository, b"new.bin", os.urandom(5000))


@row("NUL in text")
def _(repository: Path) -> None:
    put(repository, b"a.txt", b"one\n\0\nthree\n")


@row("CRLF")
def _(repository: Path) -> None:
    put(repository, b"a.txt", b"one\r\ntwo\r\nthree\r\n")
    put(repository, b"crlf.bat", b"@echo on\r\necho hi\r\nmixed\n")


@row("lone CR")
def _(repository: Path) -> None:
    put(repository, b"a.txt", b"one\rtwo\rthree\r")


@row("no end of line")
def _(repository: Path) -> None:
    put(repository, b"a.txt", b"one\ntwo\nthree")
    put(repository, b"no-eol.txt", b"still no end of line")


@row("ident")
def _(repository: Path) -> None:
    put(repository, b"ident.c", b"/* $Id: 0123456789 $ */\nint y;\n")


@row("eol=crlf of the base")
def _(repository: Path) -> None:
    put(repository, b"crlf.bat", b"@echo off\necho now LF\n")
    put(repository, b"fresh.bat", b"one\r\ntwo\n")


@row("working-tree-encoding")
def _(repository: Path) -> None:
    put(repository, b"wide.u16", "gr\u00fc\u00dfe\n".encode("utf-16"))
    put(repository, b"broken.u16", b"\xff\xfe\x00")


@row("attribute -diff")
def _(repository: Path) -> None:
    put(repository, b"t.nodiff", b"text\n")
    put(repository, b".gitattributes", b"* -diff\n")
    put(repository, b"a.txt", b"hidden?\n")


@row("attribute binary")
def _(repository: Path) -> None:
    put(repository, b"t.forced", b"text\n")
    put(repository, b".gitattributes", b"* binary\n")
    put(repository, b"a.txt", b"hidden?\n")


@row("agent's text eol=crlf")
def _(repository: Path) -> None:
    put(repository, b".gitattributes", b"* text eol=crlf\n")
    put(repository, b"a.txt", b"one\ntwo\r\n")
    put(repository, b"other.txt", b"one\r\ntwo\r\n")


@row("filter=lfs")
def _(repository: Path) -> None:
    put(repository, b"asset.lfs", b"other real bytes\n")
    put(repository, b"fresh.lfs", b"new real bytes\n")


@row("LFS pointer")
def _(repository: Path) -> None:
    put(repository, b"pointer.lfs", b"version https://git-lfs.github.com/spec/v1\nsize 4\n")


@row("export-ignore and export-subst")
def _(repository: Path) -> None:
    put(repository, b"export.txt", b"$Format:%an$\n")
    put(repository, b".gitattributes", b"* export-ignore export-subst\n")


@row("diff look-alike")
def _(repository: Path) -> None:
    put(
        repository,
        b"a.txt",
        b"diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -1 +1 @@\n-one\n+two\nGIT binary patch\n-- \n",
    )


@row("mbox From")
def _(repository: Path) -> None:
    put(repository, b"a.txt", b"From 0123 Mon Sep 17 00:00:00 2001\nSubject: x\n\n---\nFrom \n")


@row("Unicode line separators")
def _(repository: Path) -> None:
    put(repository, b"a.txt", "one\u2028two\u2029three\u0085four\x0b\x0cfive\n".encode())


@row("100,000 lines")
def _(repository: Path) -> None:
    put(repository, b"b.txt", b"".join(b"row %d\n" % n for n in range(100_000)))


@row("one line of 5 MB")
def _(repository: Path) -> None:
    put(repository, b"long.txt", b"y" * 5_000_000)


@row("trailing white space")
def _(repository: Path) -> None:
    put(repository, b"a.txt", b"one  \ntwo\t\n\n \n\t\n   ")


@row("a last line of one space")
def _(repository: Path) -> None:
    put(repository, b"a.txt", b"one\ntwo\nthree\n ")


@row("touched, yet equal", changed=())
def _(repository: Path) -> None:
    for path in repository.rglob("*"):
        if path.is_file() and not path.is_symlink():
            content = path.read_bytes()
            path.write_bytes(content)


@row("over the soft limit of a file", changed=(b"large.bin",))
def _(repository: Path) -> None:
    with (repository / "large.bin").open("wb") as file:
        file.truncate(33 * 1024**2)
        file.write(b"head")


# --- kinds of things at a path


@row("file to link")
def _(repository: Path) -> None:
    (repository / "a.txt").unlink()
    (repository / "a.txt").symlink_to("b.txt")


@row("link to file")
def _(repository: Path) -> None:
    (repository / "link").unlink()
    put(repository, b"link", b"a.txt")


@row("file to directory", changed=(b"a.txt", b"a.txt/inner.txt"))
def _(repository: Path) -> None:
    (repository / "a.txt").unlink()
    put(repository, b"a.txt/inner.txt")


@row("directory to file", changed=(b"dir", b"dir/.gitignore", b"dir/sub/y.py", b"dir/x.py"))
def _(repository: Path) -> None:
    shutil.rmtree(repository / "dir")
    put(repository, b"dir")


@row("directory to link")
def _(repository: Path) -> None:
    shutil.rmtree(repository / "dir")
    (repository / "dir").symlink_to("/etc")


@row("link to directory")
def _(repository: Path) -> None:
    (repository / "link").unlink()
    put(repository, b"link/inner")


@row("directory made anew", changed=(b"dir/.gitignore", b"dir/sub/y.py", b"dir/z.py"))
def _(repository: Path) -> None:
    shutil.rmtree(repository / "dir")
    put(repository, b"dir/z.py")
    put(repository, b"dir/x.py", b"x = 1\n")


@row("directory renamed")
def _(repository: Path) -> None:
    shutil.copytree(repository / "dir", repository / "moved")
    shutil.rmtree(repository / "dir")


@row("absolute link", changed=(b"abs",))
def _(repository: Path) -> None:
    (repository / "abs").symlink_to("/etc/passwd")


@row("link out of the repository", changed=(b"up",))
def _(repository: Path) -> None:
    (repository / "up").symlink_to("../../../../../../etc")


@row("link with a newline", changed=(b"nl",))
def _(repository: Path) -> None:
    (repository / "nl").symlink_to("a\nb\n")


@row("link to itself and dangling link")
def _(repository: Path) -> None:
    (repository / "loop").symlink_to("loop")
    (repository / "dangling").symlink_to("nowhere")


@row("link with an invalid UTF-8 target")
def _(repository: Path) -> None:
    (repository / "bad-link").symlink_to(os.fsdecode(b"\xff\xfe"))


@row("hard links", changed=(b"one", b"two"))
def _(repository: Path) -> None:
    put(repository, b"one", b"same\n")
    (repository / "two").hardlink_to(repository / "one")


@row("hard link to a file of the base", changed=(b"twin",))
def _(repository: Path) -> None:
    (repository / "twin").hardlink_to(repository / "a.txt")


@row("fifo", left_out=("pipe",), changed=())
def _(repository: Path) -> None:
    os.mkfifo(repository / "pipe")


@row("fifo as .gitignore", left_out=(".gitignore", "new/.gitignore"), changed=(b".gitignore",))
def _(repository: Path) -> None:
    (repository / ".gitignore").unlink()
    os.mkfifo(repository / ".gitignore")
    (repository / "new").mkdir()
    os.mkfifo(repository / "new" / ".gitignore")


@row("fifo as .gitattributes", left_out=(".gitattributes",), changed=(b".gitattributes",))
def _(repository: Path) -> None:
    (repository / ".gitattributes").unlink()
    os.mkfifo(repository / ".gitattributes")


@row("tracked file to fifo", left_out=("a.txt",), changed=(b"a.txt",))
def _(repository: Path) -> None:
    (repository / "a.txt").unlink()
    os.mkfifo(repository / "a.txt")


@row("socket", left_out=("sock",), changed=())
def _(repository: Path) -> None:
    os.chdir(repository)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("sock")


@row("devices", left_out=("null", "disk"), changed=())
def _(repository: Path) -> None:
    os.mknod(repository / "null", 0o666 | stat.S_IFCHR, os.makedev(1, 3))
    os.mknod(repository / "disk", 0o666 | stat.S_IFBLK, os.makedev(7, 0))


@row("whiteouts left by renames", changed=(b"a.txt", b"dir/x.py", b"dir/z.py", b"z.txt"))
def _(repository: Path) -> None:
    (repository / "a.txt").rename(repository / "z.txt")
    (repository / "dir" / "x.py").rename(repository / "dir" / "z.py")


@row("mode 000", changed=(b"a.txt", b"closed/in.txt"))
def _(repository: Path) -> None:
    put(repository, b"a.txt", b"changed\n")
    put(repository, b"closed/in.txt")
    (repository / "a.txt").chmod(0)
    (repository / "closed" / "in.txt").chmod(0)
    (repository / "closed").chmod(0)


@row("set-id bits", left_out=("suid",), changed=(b"suid",))
def _(repository: Path) -> None:
    put(repository, b"suid")
    (repository / "suid").chmod(0o6755)


@row("empty directory", left_out=("hollow/",), changed=())
def _(repository: Path) -> None:
    (repository / "hollow").mkdir()


@row("directory emptied", left_out=("dir/sub/",), changed=(b"dir/sub/y.py",))
def _(repository: Path) -> None:
    (repository / "dir" / "sub" / "y.py").unlink()


# --- names


def _names(*names: bytes) -> Change:
    def change(repository: Path) -> None:
        for name in names:
            put(repository, name)

    return change


row("name with newline", changed=(b"a\nb",))(_names(b"a\nb"))
row("name with tab", changed=(b"a\tb",))(_names(b"a\tb"))
row("name with quotes")(_names(b'q"uote', b"q'uote", b"`q`"))
row("name with backslash")(_names(b"back\\slash", b"\\n", b"\\303\\251"))
row("name with CR", changed=(b"a\rb",))(_names(b"a\rb"))
row("name with leading dash")(_names(b"-rf", b"--output=x", b"-"))
row("name with trailing space")(_names(b"trail ", b" lead", b"  "))
row("glob name")(_names(b"*.txt", b"[a]", b"?", b"**"))
row("pathspec magic name")(_names(b":(top)", b":!x", b":/", b":(exclude)a.txt"))
row("invalid UTF-8 name", changed=(b"\xff\xfe\x80",))(_names(b"\xff\xfe\x80"))
row("NFC and NFD names")(_names("\u00e9".encode(), "e\u0301".encode()))
row("names that differ by case")(_names(b"Case", b"case", b"CASE"))
row("names that look like a patch")(_names(b"a b/b/a b/x b/y", b"x b/y.txt", b"/dev/null/x"[1:]))


@row("directories that end in a space")
def _(repository: Path) -> None:
    put(repository, b" /empty", b"")
    put(repository, b"a /b /empty", b"")
    put(repository, b"a /b /binary", bytes(range(256)))
    put(repository, b"a /b /text", b"diff --git a/a /b /empty b/a /b /empty\n")
    put(repository, b'a /q"uote /empty', b"")


row("brace and arrow names")(_names(b"{a => b}", b"a => b", b"dev/null"))
row("control bytes and DEL")(_names(bytes([*range(1, 10), *range(11, 32), 127])))
row("name of 255 bytes")(_names(b"n" * 255))
row("dots")(_names(b"...", b"..a", b"a..", b".hidden/..x"))
row("names of other systems")(_names(b"CON", b"aux.txt", b"nul", b"a:b", b"end."))


# --- ignored and ignoring


@row("ignored by the base", ignored=("build/", "x.o"), changed=(b"tracked.log",),
     uncarried=(b"x.o", b"build"))  # fmt: skip
def _(repository: Path) -> None:
    put(repository, b"x.o")
    put(repository, b"build/out.bin")
    put(repository, b"build/sub/more.bin")
    put(repository, b"tracked.log", b"tracked files count always\n")


@row("ignored by a nested file of the base", ignored=("dir/a.tmp",), uncarried=(b"dir/a.tmp",),
     changed=(b"a.tmp", b"dir/keep.tmp"))  # fmt: skip
def _(repository: Path) -> None:
    put(repository, b"dir/a.tmp")
    put(repository, b"dir/keep.tmp")
    put(repository, b"a.tmp")


@row("agent's .gitignore of everything", changed=(b".gitignore", b"a.txt", b"new.txt"))
def _(repository: Path) -> None:
    put(repository, b".gitignore", b"*\n")
    put(repository, b"new.txt")
    put(repository, b"a.txt", b"changed\n")


@row("agent's nested .gitignore of everything", changed=(b"dir/.gitignore", b"dir/new.py"))
def _(repository: Path) -> None:
    put(repository, b"dir/.gitignore", b"*\n")
    put(repository, b"dir/new.py")


@row("agent's rule that would bring ignored files in", ignored=("x.o",), uncarried=(b"x.o",),
     changed=(b".gitignore",))  # fmt: skip
def _(repository: Path) -> None:
    put(repository, b".gitignore", b"!*.o\n")
    put(repository, b"x.o")


@row("agent litter", left_out=(".bashrc", ".gitconfig", ".gitmodules", "*.pem"),
     uncarried=(b".bashrc", b".gitconfig", b".gitmodules", b"*.pem"),
     changed=(b".mcp.json",))  # fmt: skip
def _(repository: Path) -> None:
    for name in (b".bashrc", b".gitconfig", b".gitmodules", b"*.pem"):
        put(repository, name, b"")
        Path(os.fsdecode(os.fsencode(repository) + b"/" + name)).chmod(0o444)
    put(repository, b".mcp.json", b"{}\n")
    (repository / ".mcp.json").chmod(0o444)


# --- git data


def _git(repository: Path, *arguments: str) -> None:
    subprocess.run(
        ["git", "-c", "safe.directory=*", "-c", "user.name=a", "-c", "user.email=a@b", *arguments],
        cwd=repository,
        env={"PATH": "/usr/bin:/bin", "HOME": "/nonexistent"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        check=True,
    )


@row("nested repository", left_out=("vendor/.git",), changed=(b"vendor/lib.py",))
def _(repository: Path) -> None:
    put(repository, b"vendor/lib.py", b"lib = 1\n")
    _git(repository / "vendor", "init", "-q")
    _git(repository / "vendor", "add", "-A")
    _git(repository / "vendor", "commit", "-qm", "x")


@row("empty nested repository", left_out=("vendor/.git",), changed=())
def _(repository: Path) -> None:
    (repository / "vendor").mkdir()
    _git(repository / "vendor", "init", "-q")


@row("bare nested repository")
def _(repository: Path) -> None:
    (repository / "bare").mkdir()
    _git(repository / "bare", "init", "-q", "--bare", "--template=")


@row("nested .git file", left_out=("vendor/.git",), changed=(b"vendor/lib.py",))
def _(repository: Path) -> None:
    put(repository, b"vendor/lib.py")
    put(repository, b"vendor/.git", b"gitdir: /etc\n")


@row("nested .git link", left_out=("vendor/.git",), changed=(b"vendor/lib.py",))
def _(repository: Path) -> None:
    put(repository, b"vendor/lib.py")
    (repository / "vendor" / ".git").symlink_to("/etc")


@row("poisoned nested repository", left_out=("vendor/.git",), changed=(b"vendor/lib.py",))
def _(repository: Path) -> None:
    put(repository, b"vendor/lib.py")
    _git(repository / "vendor", "init", "-q")
    shutil.copy(repository / ".git" / "config", repository / "vendor" / ".git" / "config")


@row(".GIT", left_out=(".GIT", "sub/.Git"), changed=())
def _(repository: Path) -> None:
    put(repository, b".GIT/config")
    put(repository, b"sub/.Git")


@row("git~1", INVALID, changed=(b"git~1/config",))
def _(repository: Path) -> None:
    put(repository, b"git~1/config")


@row(".git with an ignored Unicode character", INVALID)
def _(repository: Path) -> None:
    put(repository, ".g\u200cit/config".encode())


@row(".gitmodules file", changed=(b".gitmodules",))
def _(repository: Path) -> None:
    put(repository, b".gitmodules", b'[submodule "x"]\n\tpath = -x\n\turl = ext::sh -c false\n')


@row(".gitmodules link", INVALID, changed=(b".gitmodules",))
def _(repository: Path) -> None:
    (repository / ".gitmodules").symlink_to("a.txt")


@row(".git removed", left_out=(".git",), changed=(b"a.txt",))
def _(repository: Path) -> None:
    shutil.rmtree(repository / ".git")
    put(repository, b"a.txt", b"changed\n")


@row(".git replaced by a file", left_out=(".git",), changed=(b"a.txt",))
def _(repository: Path) -> None:
    shutil.rmtree(repository / ".git")
    put(repository, b".git", b"gitdir: /etc\n")
    put(repository, b"a.txt", b"changed\n")


@row("hidden by the agent's own index", changed=(b"a.txt", b"b.txt", b"dir/x.py", b"run.sh"))
def _(repository: Path) -> None:
    _git(repository, "update-index", "--skip-worktree", "a.txt")
    _git(repository, "update-index", "--assume-unchanged", "b.txt")
    put(repository, b"a.txt", b"hidden\n")
    put(repository, b"b.txt", b"hidden\n")
    put(repository, b".git/info/exclude", b"*\n")
    put(repository, b"dir/x.py", b"x = 9\n")
    (repository / "run.sh").chmod(0o644)


@row("executable bit hidden by core.fileMode", changed=(b"a.txt",))
def _(repository: Path) -> None:
    _git(repository, "config", "core.fileMode", "false")
    (repository / "a.txt").chmod(0o755)


@row("only in the agent's index", changed=())
def _(repository: Path) -> None:
    put(repository, b"gone.txt")
    _git(repository, "-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false",
         "add", "gone.txt")  # fmt: skip
    _git(repository, "-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false",
         "update-index", "--chmod=+x", "a.txt")  # fmt: skip
    (repository / "gone.txt").unlink()


@row("committed and stashed by the agent", changed=(b"c.txt",))
def _(repository: Path) -> None:
    put(repository, b"c.txt")
    _git(repository, "-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false",
         "-c", "filter.lfs.clean=cat", "-c", "filter.lfs.process=", "add", "c.txt")  # fmt: skip
    _git(repository, "-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false",
         "-c", "filter.lfs.clean=cat", "-c", "filter.lfs.process=",
         "commit", "-qm", "x", "c.txt")  # fmt: skip


# --- sizes and depths


@row("sparse file of 1 TB", INCOMPLETE, left_out=("huge.bin",), uncarried=(b"huge.bin",),
     changed=(b"a.txt",))  # fmt: skip
def _(repository: Path) -> None:
    with (repository / "huge.bin").open("wb") as file:
        file.truncate(1024**4)
    put(repository, b"a.txt", b"changed\n")


@row("tracked file grown to 1 TB", INCOMPLETE, left_out=("a.txt",), changed=(b"c.txt",),
     uncarried=(b"a.txt",))  # fmt: skip
def _(repository: Path) -> None:
    with (repository / "a.txt").open("wb") as file:
        file.truncate(1024**4)
    put(repository, b"c.txt")


@row("1,500 directories deep", INCOMPLETE, uncarried=(b"deep",), changed=(b"a.txt",))
def _(repository: Path) -> None:
    put(repository, b"a.txt", b"changed\n")
    os.chdir(repository)
    for _ in range(1500):
        os.mkdir("deep")  # noqa: PTH102 - the path would be too long
        os.chdir("deep")
    Path("bottom").write_text("x", encoding="ascii")


@row("1,000 new files")
def _(repository: Path) -> None:
    for number in range(1000):
        put(repository, b"many/%d/f%d" % (number % 7, number), b"%d\n" % number)


# --- the repository's own directory


@row("everything removed")
def _(repository: Path) -> None:
    for entry in repository.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()


@row("poisoned root .git", changed=(b"a.txt",))
def _(repository: Path) -> None:
    put(repository, b"a.txt", b"changed\n")
