"""Repositories that nobody here wrote: published source packages, pinned by hash."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
PINS = ROOT / "requirements" / "subjects.txt"
FETCHED = Path(sys.prefix) / "subjects"
"""Where ./dev keeps them."""


def fetch() -> Path:
    """Give the folder of the pinned source packages, fetched where ./dev has not done so yet."""
    wanted = [line.split()[0] for line in PINS.read_text().splitlines() if "==" in line]
    names = [f"{name.replace('==', '-')}.tar.gz" for name in wanted]
    if not all((FETCHED / name).exists() for name in names):
        subprocess.run(
            [
                *(sys.executable, "-m", "pip", "download", "-qq", "--no-input", "--no-deps"),
                *("--no-binary", ":all:", "--no-build-isolation", "--require-hashes"),
                *("--dest", str(FETCHED), "--requirement", str(PINS)),
            ],
            check=True,
        )
    return FETCHED


def unpack(name: str, folder: Path) -> Path:
    """Unpack one package, such as ``colorama-0.4.6``, and commit it as its maintainers would."""
    archive = fetch() / f"{name}.tar.gz"
    subprocess.run(["tar", "-xzf", archive, "--no-same-owner", "-C", folder], check=True)
    repository = folder / name
    for arguments in (
        ["init", "-q", "-b", "main", "--template="],
        ["add", "--all"],
        ["-c", "user.name=M", "-c", "user.email=m@localhost", "commit", "-q", "-m", name],
    ):
        subprocess.run(["git", *arguments], cwd=repository, check=True)
    return repository
