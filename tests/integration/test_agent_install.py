"""Installing agents: whole or not at all, once, and found damaged when they are."""

from __future__ import annotations

import asyncio
import hashlib
import io
import json
import platform
import subprocess
import sys
import tarfile
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from forkyard.agents.interface import AGENTS_ROOT, Package, Recipe
from forkyard.config import Layout
from forkyard.errors import ConfigError, NotFoundError, WorkspaceError
from forkyard.workspace import agent_install
from forkyard.workspace.agent_contents import CONTENTS
from forkyard.workspace.agent_fetch import Fetcher
from forkyard.workspace.agent_folders import outdated, sweep
from forkyard.workspace.agent_install import Agents, InstalledAgent, digest_of, recipe_of
from real_agents import ARCHIVES, fetch, provide

pytestmark = pytest.mark.anyio


def recipe_in(
    folder: Path,
    *,
    version: str = "1.0",
    program: str = "bin/tool",
    files: dict[str, bytes] | None = None,
) -> Recipe:
    """Make an archive of one program, and pin it."""
    held = {"package/bin/tool": b"text", "package/lib/data": b"text", **(files or {})}
    folder.mkdir(exist_ok=True)
    file = folder / f"tool-{version}.tgz"
    with tarfile.open(file, "w:gz") as archive:
        for name, content in held.items():
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(content), 0o755 if "bin" in name else 0o600
            archive.addfile(member, io.BytesIO(content))
    package = Package(
        registry="npm",
        name="tool",
        version=version,
        file=file.name,
        sha512=hashlib.sha512(file.read_bytes()).hexdigest(),
    )
    return Recipe(version=version, packages=(package,), program=program)


async def install(agents: Agents, recipe: Recipe, source: Path) -> InstalledAgent:
    """Install from a folder."""
    return await agents._install(
        "tool", recipe, source=source, variables={}, announce=lambda _: None
    )


async def test_an_agent_is_whole_when_it_has_its_name(tmp_path: Path) -> None:
    """Everybody inside may read it, its mount is read-only at a fixed place, nothing is left."""
    layout = Layout(tmp_path / "home")
    recipe = recipe_in(tmp_path / "source")

    made = await install(Agents(layout), recipe, tmp_path / "source")

    assert (made.folder / "bin" / "tool").stat().st_mode & 0o777 == 0o755
    assert (made.folder / "lib" / "data").stat().st_mode & 0o777 == 0o644
    assert (made.folder / "lib").stat().st_mode & 0o777 == 0o755
    assert made.mount.target == f"{AGENTS_ROOT}/tool"
    assert [one.name for one in layout.agents.iterdir()] == [f"tool-1.0-{made.digest}"]
    assert list(layout.trash.iterdir()) == []


async def test_one_folder_is_made_when_it_is_installed_many_times_at_once(tmp_path: Path) -> None:
    """By one server or by two that know nothing of each other."""
    layout = Layout(tmp_path / "home")
    recipe = recipe_in(tmp_path / "source")
    agents = [Agents(layout) for _ in range(4)]

    made = await asyncio.gather(
        *(install(one, recipe, tmp_path / "source") for one in agents for _ in range(3))
    )

    assert len({one.folder for one in made}) == 1
    assert len(list(layout.agents.iterdir())) == 1


async def test_nothing_is_left_when_an_archive_is_another(tmp_path: Path) -> None:
    """The name appears only for what is whole."""
    layout = Layout(tmp_path / "home")
    recipe = recipe_in(tmp_path / "source")
    (tmp_path / "source" / recipe.packages[0].file).write_bytes(b"evil")

    with pytest.raises(WorkspaceError, match="SHA-512"):
        await install(Agents(layout), recipe, tmp_path / "source")

    assert list(layout.agents.iterdir()) == []


async def test_nothing_is_left_when_it_is_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread that unpacks is waited for, then its folder goes."""
    layout = Layout(tmp_path / "home")
    recipe = recipe_in(tmp_path / "source")
    begun, unpack = asyncio.Event(), agent_install._unpack
    loop = asyncio.get_running_loop()

    def slowly(*arguments: object) -> None:
        loop.call_soon_threadsafe(begun.set)
        stop = arguments[3]
        assert isinstance(stop, threading.Event)
        stop.wait(30)
        unpack(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(agent_install, "_unpack", slowly)
    task = asyncio.create_task(install(Agents(layout), recipe, tmp_path / "source"))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert list(layout.agents.iterdir()) == []


async def test_an_archive_is_named_when_the_folder_lacks_it(tmp_path: Path) -> None:
    """The message says which file is missing."""
    recipe = recipe_in(tmp_path / "source")

    with pytest.raises(NotFoundError, match=r"tool-1\.0\.tgz"):
        await install(Agents(Layout(tmp_path / "home")), recipe, tmp_path)


async def test_a_recipe_is_refused_when_its_program_is_in_no_archive(tmp_path: Path) -> None:
    """A pin gone wrong is found when it is installed, not when an attempt starts."""
    recipe = recipe_in(tmp_path / "source", program="bin/other")

    with pytest.raises(WorkspaceError, match="bin/other"):
        await install(Agents(Layout(tmp_path / "home")), recipe, tmp_path / "source")


async def test_damage_is_found_when_a_file_is_changed_missing_or_new(tmp_path: Path) -> None:
    """Every file is compared with what was unpacked."""
    agents = Agents(Layout(tmp_path / "home"))
    made = await install(agents, recipe_in(tmp_path / "source"), tmp_path / "source")
    assert await agents.damage(made) == ()

    (made.folder / "bin" / "tool").write_bytes(b"evil")
    (made.folder / "lib" / "data").unlink()
    (made.folder / "new").write_bytes(b"")

    found = " ".join(await agents.damage(made))
    assert "bin/tool has other contents" in found
    assert "lib/data cannot be read" in found
    assert "new does not belong there" in found


async def test_modules_are_compiled_when_an_agent_brings_a_library(tmp_path: Path) -> None:
    """No attempt has to do it, none of them is run, and they are looked after like the rest."""
    agents = Agents(Layout(tmp_path / "home"))
    recipe = recipe_in(tmp_path / "source", files={"package/lib/a.py": b"raise SystemExit(9)\n"})

    made = await install(agents, replace(recipe, library="lib"), tmp_path / "source")
    compiled = next((made.folder / "lib" / "__pycache__").iterdir())

    assert compiled.name.startswith("a.cpython-")
    assert await agents.damage(made) == ()
    compiled.write_bytes(b"evil")
    assert len(await agents.damage(made)) == 1


async def test_leftovers_are_swept_when_an_installation_was_killed(tmp_path: Path) -> None:
    """What never got its name goes at the next start."""
    layout = Layout(tmp_path / "home")
    (layout.agents / ".new-abc" / "made").mkdir(parents=True)

    assert sweep(layout) == ("agents/.new-abc",)
    assert list(layout.agents.iterdir()) == []


async def test_folder_is_outdated_when_no_driver_is_pinned_to_it(tmp_path: Path) -> None:
    """What is pinned now, what is being made and what is no agent's is none."""
    layout = Layout(tmp_path / "home")
    source = tmp_path / "source"
    source.mkdir()
    made = await install(Agents(layout), recipe_in(source), source)
    recipe = recipe_of("codex")
    assert recipe is not None
    current = layout.agents / f"codex-{recipe.version}-{digest_of(recipe)}"
    for folder in (current, layout.agents / ".new-abc", layout.agents / "mine"):
        folder.mkdir()
    (current / CONTENTS).write_text("{}")

    assert outdated(layout) == (made.folder.parent,)


async def test_what_is_done_is_known_when_an_agent_is_being_installed(tmp_path: Path) -> None:
    """While it lasts: which step, and the bytes on disk so far."""
    layout = Layout(tmp_path / "home")
    source = tmp_path / "source"
    source.mkdir()
    agents = Agents(layout)
    seen: list[tuple[str, int]] = []

    def look(_: str) -> None:
        doing = agents.doing("tool")
        assert doing is not None
        seen.append((doing.what, doing.size_bytes()))

    recipe = recipe_in(source, files={"package/lib/a.py": b"A = 1\n"})
    recipe = replace(recipe, library="lib")
    await agents._install("tool", recipe, source=source, variables={}, announce=look)

    assert [what for what, _ in seen] == ["unpacking tool 1.0", "compiling tool"]
    assert seen[1][1] > seen[0][1] == 0
    assert agents.doing("tool") is None


async def test_it_is_refused_when_the_machine_is_of_another_kind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Said before anything is fetched."""
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")

    with pytest.raises(ConfigError, match="cannot install codex: this machine is aarch64"):
        await Agents(Layout(tmp_path)).install("codex", source=tmp_path)


async def test_clients_get_no_secret_when_they_fetch(tmp_path: Path) -> None:
    """Only what says where a registry is reaches npm and pip; their home is an empty one."""
    shown = tmp_path / "shown"
    tools = tmp_path / "tools"
    tools.mkdir()
    tool = tools / "npm"
    tool.write_text(f'#!/bin/sh\nenv >{shown}\necho "no such package" >&2\nexit 1\n')
    tool.chmod(0o755)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    fetcher = Fetcher(
        scratch,
        search_path=f"{tools}:/usr/bin:/bin",
        variables={
            "ANTHROPIC_API_KEY": "sk-canary",
            "NPM_CONFIG_REGISTRY": "http://mirror.test",
            "NPM_TOKEN": "sk-canary",
            "HOME": "/root",
        },
    )

    with pytest.raises(WorkspaceError, match="npm says: no such package"):
        await fetcher.fetch(recipe_in(tmp_path / "source").packages)

    seen = shown.read_text()
    assert "sk-canary" not in seen
    assert "NPM_CONFIG_REGISTRY=http://mirror.test" in seen
    assert f"HOME={scratch / 'home'}" in seen


def agent(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `forkyard agent`."""
    return subprocess.run(
        [sys.executable, "-m", "forkyard", "agent", *arguments],
        check=False,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=200,
    )


def test_the_command_line_installs_and_checks_when_archives_are_in_a_folder(home: Path) -> None:
    """Not there, installed, there, damaged: with the exit codes that are promised."""
    provide(home, "claude-code")
    fetch("opencode")

    missing = agent("check", "opencode", "--json")
    installed = agent("install", "opencode", "--from", str(ARCHIVES), "--json")
    listed = json.loads(agent("list", "--json").stdout)

    assert missing.returncode == 11
    assert json.loads(installed.stdout)[0]["installed"] is True
    assert {one["name"]: one["installed"] for one in listed}["opencode"] is True
    assert agent("check", "claude-code", "opencode").returncode == 0
    assert agent("install", "telepathy").returncode == 3
    assert agent("install", "command").returncode == 2
    assert agent("install").returncode == 2

    program = Path(json.loads(installed.stdout)[0]["folder"]) / "bin" / "opencode"
    with program.open("r+b") as file:
        file.write(b"evil")
    damaged = agent("check", "opencode")
    assert damaged.returncode == 11
    assert "bin/opencode has other contents" in damaged.stdout
