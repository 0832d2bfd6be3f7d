"""What a repository asks for outside /usr: found, named, and never too much."""

from __future__ import annotations

from pathlib import Path

import pytest

from forkyard.workspace.toolchains import find_toolchains


@pytest.fixture
def person(tmp_path: Path) -> Path:
    """Make a home with toolchains and secrets."""
    for name in (
        ".pyenv/versions/3.11.7/bin",
        ".pyenv/versions/3.12.1/bin",
        ".local/share/uv/python/cpython-3.12.4-linux/bin",
        ".nvm/versions/node/v20.9.0/bin",
        ".nvm/versions/node/v20.11.1/bin",
        ".rustup/toolchains/1.79-x86_64-unknown-linux-gnu/bin",
        ".rustup/toolchains/stable-x86_64-unknown-linux-gnu/bin",
        "sdk/go1.22.4/bin",
        ".config/tool/bin",
        ".ssh",
        "project",
    ):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / ".pyenv/versions/3.11.7/bin/python3.11").touch()
    (tmp_path / ".local/share/uv/python/cpython-3.12.4-linux/bin/python3.12").touch()
    (tmp_path / ".local/share/uv/python/cpython-3.12-linux").symlink_to("cpython-3.12.4-linux")
    return tmp_path


def _targets(person: Path) -> dict[str, str]:
    found = find_toolchains(str(person / "project"), home=str(person))
    return {str(Path(mount.target).relative_to(person)): mount.reason for mount in found.mounts}


def _venv(person: Path, home: str, python: str) -> None:
    folder = person / "project/.venv/bin"
    folder.mkdir(parents=True)
    (folder.parent / "pyvenv.cfg").write_text(f"home = {home}\nversion = 3\n")
    (folder / "python").symlink_to(python)


def test_the_interpreter_is_shown_when_a_virtual_environment_points_to_it(person: Path) -> None:
    """Its installation, at its own path; not the versions beside it."""
    base = person / ".pyenv/versions/3.11.7/bin"
    _venv(person, str(base), str(base / "python3.11"))
    assert _targets(person) == {".pyenv/versions/3.11.7": ".venv/pyvenv.cfg"}


def test_both_names_are_shown_when_the_way_leads_through_a_link(person: Path) -> None:
    """Environments of uv name a folder that is itself a link."""
    base = person / ".local/share/uv/python/cpython-3.12-linux/bin"
    _venv(person, str(base), str(base / "python3.12"))
    assert _targets(person) == {
        ".local/share/uv/python/cpython-3.12-linux": ".venv/pyvenv.cfg",
        ".local/share/uv/python/cpython-3.12.4-linux": ".venv/pyvenv.cfg",
    }
    found = find_toolchains(str(person / "project"), home=str(person))
    assert len({mount.source for mount in found.mounts}) == 1


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        (".python-version", "3.12\n", ".pyenv/versions/3.12.1"),
        (".nvmrc", "v20\n", ".nvm/versions/node/v20.11.1"),
        (".node-version", "20.9.0", ".nvm/versions/node/v20.9.0"),
        (
            "rust-toolchain.toml",
            '[toolchain]\nchannel = "1.79"\n',
            ".rustup/toolchains/1.79-x86_64-unknown-linux-gnu",
        ),
        ("rust-toolchain", "stable\n", ".rustup/toolchains/stable-x86_64-unknown-linux-gnu"),
        ("go.mod", "module m\n\ngo 1.22\n\ntoolchain go1.22.4\n", "sdk/go1.22.4"),
    ],
)
def test_a_version_is_found_when_a_file_names_it(
    person: Path, name: str, text: str, expected: str
) -> None:
    """And its programs come first on PATH."""
    (person / "project" / name).write_text(text)
    assert _targets(person) == {expected: name}
    found = find_toolchains(str(person / "project"), home=str(person))
    assert found.path == (str(person / expected / "bin"),)


@pytest.mark.parametrize(
    "asked", ["", ".config/tool", ".ssh", ".local", "/etc", "/", "/root/.ssh", "project/../.ssh"]
)
def test_nothing_is_shown_when_a_file_asks_for_secrets_or_a_home(person: Path, asked: str) -> None:
    """Whatever pyvenv.cfg says: no home, no folder of secrets, no part of the system."""
    home = person / asked / "bin"
    _venv(person, str(home), str(home / "python"))
    found = find_toolchains(str(person / "project"), home=str(person))
    assert found.mounts == ()


def test_nothing_is_shown_when_a_toolchain_holds_secrets(person: Path) -> None:
    """A folder with keys in it is no toolchain."""
    (person / ".pyenv/versions/3.12.1/.aws").mkdir()
    (person / "project/.python-version").write_text("3.12.1")
    found = find_toolchains(str(person / "project"), home=str(person))
    assert found.mounts == ()
    assert "it holds .aws" in found.notes[0]


def test_it_is_said_when_what_is_asked_for_is_not_there(person: Path) -> None:
    """A note, no mount, no error."""
    _venv(person, str(person / "gone/python/bin"), "/gone/python")
    found = find_toolchains(str(person / "project"), home=str(person))
    assert found.mounts == ()
    assert any("which is not there" in note for note in found.notes)
