"""Pins what agents.toml names: fetches every archive once and writes down its hashes."""  # noqa: INP001 - a script beside its input

from __future__ import annotations

import asyncio
import hashlib
import json
import sys
import tempfile
import tomllib
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from forkyard.base.process import run_async
from forkyard.config import registry_settings, search_path
from forkyard.workspace.agent_fetch import PLATFORMS, pip_command

HERE = Path(__file__).resolve().parent
RECIPES = HERE.parent / "src" / "forkyard" / "agents" / "recipes"
VARIABLES = {**registry_settings(), "PATH": search_path(), "HOME": str(Path.home())}

Entry = dict[str, Any]


def say(text: str) -> None:
    """Tell whoever waits."""
    sys.stderr.write(f"pin-agents: {text}\n")


async def call(*argv: str) -> str:
    """Run a client; its words where it fails."""
    done = await run_async(argv, variables=VARIABLES, timeout_seconds=3600)
    if not done.succeeded:
        sys.exit(f"pin-agents: {argv[0]}: {done.stderr.decode('utf-8', 'replace')}")
    return done.stdout.decode()


async def download(folder: Path, python: str, *words: str) -> None:
    """Fetch wheels of one Python."""
    await call(
        *pip_command(search_path()),
        *("download", "-q", "--no-input", "--disable-pip-version-check", "--dest", str(folder)),
        *("--only-binary", ":all:", "--python-version", python, "--implementation", "cp"),
        *(word for one in PLATFORMS for word in ("--platform", one)),
        *words,
    )


def entry_of(registry: str, name: str, version: str, file: Path) -> Entry:
    """Give a package with its hashes."""
    content = file.read_bytes()
    entry: Entry = {
        "registry": registry,
        "name": name,
        "version": version,
        "file": file.name,
        "sha512": hashlib.sha512(content).hexdigest(),
    }
    if registry == "pypi":
        entry["sha256"] = hashlib.sha256(content).hexdigest()
    return entry


async def pin_one(package: Entry, folder: Path) -> Entry:
    """Fetch one named package."""
    name, version = package["name"], package["version"]
    if package["registry"] == "npm":
        told = await call(
            *("npm", "pack", f"{name}@{version}", "--ignore-scripts", "--silent"),
            f"--pack-destination={folder}",
        )
        file = folder / told.strip().splitlines()[-1]
    else:
        below = folder / "one"
        await download(below, "3.11", "--no-deps", f"{name}=={version}")
        file = next(below.iterdir()).rename(folder / next(below.iterdir()).name)
    extra: Entry = {key: package[key] for key in ("place", "strip", "keep") if key in package}
    return {**entry_of(package["registry"], name, version, file), **extra}


async def resolve(wanted: Entry, folder: Path) -> list[Entry]:
    """Fetch a requirement with all that it needs, for each Python, without what is left out."""
    first, *others = wanted["pythons"]
    left_out = {one.replace("-", "_").lower() for one in wanted["leave_out"]}
    await download(folder, first, wanted["requirement"])
    found: list[Entry] = []
    for file in wheels_in(folder):
        name, version = file.name.split("-")[:2]
        if name.lower() in left_out:
            continue
        place = {"place": wanted["place"], "strip": 0}
        found.append({**entry_of("pypi", name.replace("_", "-"), version, file), **place})
        if f"-cp{first.replace('.', '')}-cp" not in file.name:
            continue
        known = set(names_in(file))
        for python in others:
            below = folder / python
            await download(below, python, "--no-deps", f"{name}=={version}")
            other = next(one for one in below.iterdir() if one.name.startswith(f"{name}-"))
            # Only what the first lacks: its compiled modules, which bear the Python's name.
            keep = sorted(
                one for one in names_in(other) if one not in known and ".dist-info/" not in one
            )
            entry = entry_of("pypi", name.replace("_", "-"), version, other)
            found.append({**entry, **place, "keep": keep})
    return found


def wheels_in(folder: Path) -> list[Path]:
    """List what was fetched."""
    return sorted(folder.glob("*.whl"))


def names_in(file: Path) -> Iterable[str]:
    """List the files of a wheel."""
    with zipfile.ZipFile(file) as archive:
        return [one for one in archive.namelist() if not one.endswith("/")]


async def main() -> None:
    """Write every recipe whose name was given, or all."""
    agents: dict[str, Entry] = tomllib.loads((HERE / "agents.toml").read_text(encoding="utf-8"))
    for name in sys.argv[1:] or agents:
        wanted = agents[name]
        say(f"{name} {wanted['version']}")
        with tempfile.TemporaryDirectory() as scratch:
            packages = [await pin_one(one, Path(scratch)) for one in wanted.get("packages", ())]
            if "resolve" in wanted:
                packages += await resolve(wanted["resolve"], Path(scratch))
        said = {
            key: wanted[key] for key in ("version", "program", "library", "needs") if key in wanted
        }
        recipe = said | {"packages": packages}
        target = RECIPES / f"{name.replace('-', '_')}.json"
        target.write_text(json.dumps(recipe, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    asyncio.run(main())
