"""Looking at a repository: what is read, and what is passed over."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from forkyard.client.imports import import_template
from forkyard.client.look import look_at, read_plain
from forkyard.errors import ConfigError, NotFoundError
from forkyard.wire.templatefile import parse_template


def test_links_pipes_and_giants_are_passed_over_when_a_folder_is_looked_at(tmp_path: Path) -> None:
    """A hostile checkout can neither hang us nor show us another file."""
    (tmp_path / "secret").write_text('{"scripts": {"test": "cat"}}')
    (tmp_path / "package.json").symlink_to("secret")
    os.mkfifo(tmp_path / "Makefile")
    with (tmp_path / "go.mod").open("wb") as file:
        file.truncate(2 * 1024**2)

    found = {one.language: one for one in look_at(tmp_path)}
    assert found["JavaScript"].test is None
    assert found["Go"].setup is None
    assert read_plain(tmp_path / "Makefile") is None
    assert look_at(tmp_path / "nowhere") == ()


def test_a_template_comes_out_when_a_devcontainer_lies_in_the_repository(tmp_path: Path) -> None:
    """Its text is what the template's reader takes, the repository included."""
    (tmp_path / ".git").mkdir()
    (tmp_path / ".devcontainer").mkdir()
    (tmp_path / ".devcontainer" / "devcontainer.json").write_text(
        '{"name": "One", "postCreateCommand": "make\\nmake deps", "containerEnv": {"A": "1"}}'
    )

    made = import_template(tmp_path)
    spec = parse_template(made.text)
    assert made.name == "one"
    assert [task.run for task in spec.tasks] == ["make\nmake deps"]
    assert spec.variables == {"A": "1"}
    assert spec.repository is not None
    assert spec.repository.path == str(tmp_path)


def test_it_is_refused_when_there_is_nothing_to_import(tmp_path: Path) -> None:
    """With both places named."""
    with pytest.raises(NotFoundError, match=r"neither \.devcontainer/devcontainer\.json nor"):
        import_template(tmp_path)
    with pytest.raises(ConfigError, match="missing, no ordinary file"):
        import_template(tmp_path / "absent.json")
