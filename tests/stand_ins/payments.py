"""The seed's project: a repository with the bug of issue 1842, and the Go module that it uses."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import subprocess
import zipfile
from pathlib import Path

from stand_ins.hosts import CODE_SITE

SLUG = "acme-corp/payments-api"
MODULE = "acme-corp.example/clock"
VERSION = "v1.4.0"
FILES = Path(__file__).parent / "payments"
"""The project's own files; `clock` is the module's."""


def make_module(folder: Path) -> str:
    """Make a module proxy's files; give the lines of go.sum that vouch for the module."""
    source = FILES / "clock"
    contents = {path.name: path.read_bytes() for path in sorted(source.iterdir())}
    definition = contents["go.mod"]
    place = folder / MODULE / "@v"
    place.mkdir(parents=True)
    (place / "list").write_text(f"{VERSION}\n")
    (place / f"{VERSION}.info").write_text(
        json.dumps({"Version": VERSION, "Time": "2025-01-01T00:00:00Z"})
    )
    (place / f"{VERSION}.mod").write_bytes(definition)
    prefix = f"{MODULE}@{VERSION}/"
    with zipfile.ZipFile(place / f"{VERSION}.zip", "w") as archive:
        for name, content in contents.items():
            archive.writestr(f"{prefix}{name}", content)
    whole = _hash({f"{prefix}{name}": content for name, content in contents.items()})
    return (
        f"{MODULE} {VERSION} {whole}\n{MODULE} {VERSION}/go.mod {_hash({'go.mod': definition})}\n"
    )


def _hash(contents: dict[str, bytes]) -> str:
    """Give the sum that go.sum holds: of the lines that sha256sum would print."""
    lines = "".join(
        f"{hashlib.sha256(content).hexdigest()}  {name}\n"
        for name, content in sorted(contents.items())
    )
    return "h1:" + base64.b64encode(hashlib.sha256(lines.encode()).digest()).decode()


def make_repository(folder: Path, sums: str, scratch: Path) -> None:
    """Make the bare repository below a code site's root, with the history of a few commits."""
    work = scratch / "payments-api"
    work.mkdir()
    _git(work, "init", "-q", "-b", "main", "--template=")
    for source in sorted((FILES / "api").rglob("*")):
        if source.is_file():
            target = work / source.relative_to(FILES / "api")
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(source.read_bytes())
    (work / "go.sum").write_text(sums)
    _git(work, "add", "-A")
    _git(work, "commit", "-q", "-m", "deliver webhooks again when they fail")
    (work / "README.md").write_text("# payments-api\n\nDelivers webhooks, again when they fail.\n")
    _git(work, "add", "-A")
    _git(work, "commit", "-q", "-m", "a word on what this is")
    target = folder / f"{SLUG}.git"
    target.parent.mkdir(parents=True)
    _git(work, "clone", "-q", "--bare", "--template=", str(work), str(target))


def _git(work: Path, *arguments: str) -> None:
    identity = {"GIT_AUTHOR_NAME": "acme", "GIT_AUTHOR_EMAIL": f"acme@{CODE_SITE}.invalid"}
    identity |= {"GIT_COMMITTER_NAME": "acme", "GIT_COMMITTER_EMAIL": f"acme@{CODE_SITE}.invalid"}
    subprocess.run(
        ["git", *arguments],
        cwd=work,
        env={"PATH": os.environ["PATH"], "HOME": "/nonexistent", "GIT_CONFIG_NOSYSTEM": "1"}
        | identity,
        check=True,
        stdin=subprocess.DEVNULL,
    )
