"""What an installed agent's folder holds: every file with its hash, compiled modules too."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
from collections.abc import Iterable
from pathlib import Path

from forkyard.base.process import run_async
from forkyard.errors import WorkspaceError
from forkyard.workspace.agent_archives import UnpackedFile

CONTENTS = "contents.json"
"""Beside the folder that sandboxes see; there last, so it also says that all is there."""
FILES = "files"
PYTHON = "/usr/bin/python3"
COMPILE_SECONDS = 600.0


def write_contents(made: Path, files: Iterable[UnpackedFile]) -> None:
    """Write down what was unpacked."""
    contents = json.dumps({one.path: [one.sha256, one.size] for one in files})
    (made / CONTENTS).write_text(contents)


async def compile_library(made: Path, library: str) -> None:
    """Compile Python modules for the host's own Python, so that no attempt has to.

    Nothing of them is run. Where it cannot be done they are compiled at every start instead.
    """
    with contextlib.suppress(WorkspaceError):
        await run_async(
            [
                *(PYTHON, "-I", "-m", "compileall", "-q"),
                # They lie elsewhere inside, and nobody can change the source there.
                *("--invalidation-mode", "unchecked-hash"),
                *("-s", str(made / FILES), "-p", "/"),
                str(made / FILES / library),
            ],
            variables={"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"},
            timeout_seconds=COMPILE_SECONDS,
        )
    await asyncio.to_thread(_add_compiled, made)


def _add_compiled(made: Path) -> None:
    contents = json.loads((made / CONTENTS).read_text(encoding="utf-8"))
    for file in (made / FILES).rglob("__pycache__/*"):
        file.chmod(0o644)
        file.parent.chmod(0o755)
        found = hashlib.sha256(file.read_bytes()).hexdigest()
        contents[str(file.relative_to(made / FILES))] = [found, file.stat().st_size]
    (made / CONTENTS).write_text(json.dumps(contents))


def damage_of(folder: Path) -> tuple[str, ...]:
    """Compare every file with what was written down; empty: all is as it was.

    Args:
        folder: The one that sandboxes see.
    """
    try:
        contents: dict[str, tuple[str, int]] = json.loads(
            (folder.parent / CONTENTS).read_text(encoding="utf-8")
        )
    except (OSError, ValueError) as error:
        return (f"its list of contents cannot be read: {error}",)
    wrong = [
        problem
        for path, (sha256, size) in contents.items()
        if (problem := _wrong(folder / path, path, sha256, size)) is not None
    ]
    known = set(contents)
    for place, _, names in os.walk(folder):
        below = Path(place).relative_to(folder)
        wrong += [
            f"{below / name} does not belong there"
            for name in names
            if str(below / name) not in known
        ]
    return tuple(wrong)


def _wrong(file: Path, path: str, sha256: str, size: int) -> str | None:
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        return f"{path} cannot be read: {error.strerror}"
    with os.fdopen(descriptor, "rb") as opened:
        if os.fstat(descriptor).st_size != size:
            return f"{path} has another size"
        found = hashlib.file_digest(opened, "sha256").hexdigest()
    return None if found == sha256 else f"{path} has other contents"
