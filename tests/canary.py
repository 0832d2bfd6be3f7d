"""Finding a planted secret wherever it went: whole, in pieces, and in the usual codings.

The random part of a canary is long enough that no piece of it is anywhere by chance. So a piece
of WINDOW characters counts as the whole: one that was split over writes, rows or files is found.
"""

from __future__ import annotations

import base64
import contextlib
import os
import re
import secrets
import string
import subprocess
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

WINDOW = 10
_LETTERS = string.ascii_letters + string.digits
_MOST_BYTES = 64 * 1024**2


@dataclass(frozen=True)
class Canary:
    """One planted value."""

    random: str
    prefix: str = "sk-ant-api03-"

    @property
    def value(self) -> str:
        """The whole secret."""
        return self.prefix + self.random

    def pattern(self) -> re.Pattern[bytes]:
        """Compile every piece of the random part, in every coding."""
        content = self.random.encode()
        pieces = [content[at : at + WINDOW] for at in range(len(content) - WINDOW + 1)]
        words: set[bytes] = set()
        for piece in pieces:
            words |= {piece, piece[::-1], piece.hex().encode(), piece.hex().upper().encode()}
            words |= {b"".join(b"%%%02x" % one for one in piece)}
            words |= {b"".join(b"%%%02X" % one for one in piece)}
            words |= {b"".join(b"\\u%04x" % one for one in piece)}
            words |= {" ".join(f"{one:02x}" for one in piece).encode()}
            words |= {b"\0".join(bytes((one,)) for one in piece)}
            for before in range(3):
                # Only the characters that depend on this piece alone.
                coded = base64.b64encode(bytes(before) + piece).rstrip(b"=")
                words.add(coded[(0, 2, 3)[before] : (before + WINDOW) * 8 // 6])
        words |= {word.translate(bytes.maketrans(b"+/", b"-_")) for word in words}
        return re.compile(_tree(words), re.DOTALL)


def _tree(words: set[bytes]) -> bytes:
    """Write a pattern that shares beginnings: thousands of words in a row would take for ever."""
    if b"" in words:
        return b""
    branches: dict[int, set[bytes]] = {}
    for word in words:
        branches.setdefault(word[0], set()).add(word[1:])
    choices = [re.escape(bytes((first,))) + _tree(rest) for first, rest in branches.items()]
    return b"(?:" + b"|".join(choices) + b")"


def new_canary() -> Canary:
    """Make one that nothing holds yet."""
    return Canary("".join(secrets.choice(_LETTERS) for _ in range(48)))


class Detector:
    """Looks for one canary."""

    def __init__(self, canary: Canary) -> None:
        """Prepare to look."""
        self._pattern = canary.pattern()
        self._clean: set[bytes] = set()

    def is_in(self, content: bytes) -> bool:
        """Say whether any piece of it is in there; line ends in the middle hide nothing."""
        return any(
            self._pattern.search(one) is not None
            for one in (content, re.sub(rb"[\r\n]|\\n", b"", content))
        )

    def in_files(self, folder: Path) -> list[str]:
        """Name the files below a folder that hold it, compressed git objects unpacked."""
        found = []
        for path in sorted(folder.rglob("*")):
            with contextlib.suppress(OSError):
                if path.is_symlink():
                    contents = [os.fsencode(path.readlink())]
                elif path.is_file():
                    contents = [path.read_bytes()[:_MOST_BYTES]]
                    with contextlib.suppress(zlib.error):
                        contents.append(zlib.decompress(contents[0]))
                else:
                    contents = []
                contents.append(os.fsencode(path.name))
                if any(self.is_in(one) for one in contents):
                    found.append(str(path.relative_to(folder)))
        return found

    def in_git(self, store: Path) -> list[str]:
        """Name the objects of a git store that hold it, packed ones too."""
        command = ["git", "-c", "safe.directory=*", f"--git-dir={store}", "cat-file"]
        listed = subprocess.run(
            [*command, "--batch-all-objects", "--batch-check=%(objectname)"],
            check=True,
            capture_output=True,
        ).stdout
        every = subprocess.run(
            [*command, "--batch"], input=listed, check=True, capture_output=True
        ).stdout
        return [str(store)] if self.is_in(every) else []

    def in_processes(self) -> list[str]:
        """Name the processes of this machine whose arguments or environment hold it."""
        found = []
        for pid, content in _processes():
            if content in self._clean:
                continue
            if self.is_in(content):
                found.append(f"{pid}: {content[:80]!r}")
            else:
                self._clean.add(content)
        return found


def _processes() -> Iterator[tuple[int, bytes]]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            parts = []
            for name in ("cmdline", "environ", "comm"):
                with contextlib.suppress(OSError):
                    parts.append((entry / name).read_bytes())
            yield int(entry.name), b"\0".join(parts)
