"""Settings of test runners in files that hold more: the base's, the rest the candidate's."""

from __future__ import annotations

import json
import tomllib

import pytest

from forkyard.candidate.settings import MOST_BYTES, with_base_settings

BASE = b"""\
[project]
name = "calc"
dependencies = ["a"]

[tool.pytest.ini_options]
addopts = "-q"

[tool.ruff]
line-length = 100
"""


def toml(now: bytes | None, base: bytes | None = BASE) -> bytes | None:
    """Ask for a pyproject.toml."""
    return with_base_settings("pyproject.toml", now, base)


def test_an_honest_change_stays_byte_for_byte() -> None:
    """As long as the settings are the base's, nothing is written anew."""
    now = BASE.replace(b'["a"]', b'["a", "b"]') + b"\n[tool.black]\nx = 1 # comment\n"
    assert toml(now) == now
    assert toml(None, None) is None
    assert toml(b"[tool.ruff]\n", None) == b"[tool.ruff]\n"


@pytest.mark.parametrize(
    "cheat",
    [
        BASE.replace(b'"-q"', b'"-p evil"'),
        BASE + b"[tool.pytest]\nini_options2 = 1\n",
        BASE.replace(b"[tool.pytest.ini_options]\naddopts", b"[tool]\npytest.ini_options.addopts"),
        BASE + b'[tool.coverage.run]\nplugins = ["evil"]\n',
        BASE + b'[tool.hatch.envs.default.scripts]\ntest = "true"\n',
    ],
)
def test_settings_are_the_bases_when_the_candidate_changed_them(cheat: bytes) -> None:
    """Whatever the spelling; everything else is kept as it means."""
    content = toml(cheat)
    assert content is not None
    read = tomllib.loads(content.decode())
    assert read["tool"].get("pytest") == {"ini_options": {"addopts": "-q"}}
    assert not {"coverage", "hatch"} & read["tool"].keys() or read["tool"]["hatch"] == {}
    assert read["project"] == {"name": "calc", "dependencies": ["a"]}
    assert toml(content) == content


def test_settings_come_back_when_the_file_or_their_table_is_gone() -> None:
    """Deleting what selects the tests is a change of them, too."""
    wanted = {"tool": {"pytest": {"ini_options": {"addopts": "-q"}}}}
    content = toml(None)
    assert content is not None
    assert tomllib.loads(content.decode()) == wanted
    content = toml(b'tool = "none"\n')
    assert content is not None
    assert tomllib.loads(content.decode()) == wanted


def test_a_new_file_has_no_settings() -> None:
    """A pyproject.toml in the tests' folder would be nearer than the base's."""
    content = toml(b'[tool.pytest.ini_options]\naddopts = "-p evil"\n', None)
    assert content is not None
    assert "pytest" not in tomllib.loads(content.decode()).get("tool", {})


@pytest.mark.parametrize(
    "broken", [b"[tool", b"\xff\xfe", b"a = 1\na = 2\n", b"x = " + b"[" * 9000]
)
def test_what_no_runner_can_read_is_left(broken: bytes) -> None:
    """Then the runner fails, which is the candidate's doing."""
    assert toml(broken) == broken


def test_what_is_too_large_to_be_honest_is_put_back_whole() -> None:
    """Nobody's settings file has a mebibyte."""
    assert toml(BASE + b"# " + b"x" * MOST_BYTES) == BASE


def test_every_kind_of_value_survives() -> None:
    """What is written anew means the same."""
    rich = b"""\
a = [1, -2.5, inf, true, "q\\"\\\\\\u007f\\n\\U0001F600", [[], {}]]
d = [1979-05-27T07:32:00Z, 1979-05-27, 07:32:00.5]
"odd key" = {"" = 1}
[[tool.x]]
y = 1
[[tool.x]]
y = 2
"""
    content = toml(rich + b"[tool.pytest]\nx = 1\n", None)
    assert content is not None
    expected = tomllib.loads(rich.decode())
    assert tomllib.loads(content.decode()) == expected


def package(now: object, base: object) -> object:
    """Ask for a package.json."""
    content = with_base_settings(
        "package.json", json.dumps(now).encode(), json.dumps(base).encode()
    )
    return json.loads(content or b"null")


def test_scripts_of_a_package_are_the_bases() -> None:
    """`npm test` runs what the base says; dependencies and entry points are the candidate's."""
    base = {"name": "x", "scripts": {"test": "node --test"}, "dependencies": {"a": "1"}}
    now = {
        "name": "x",
        "scripts": {"test": "true", "pretest": "evil"},
        "jest": {"setupFiles": ["./evil.js"]},
        "dependencies": {"a": "2"},
        "main": "new.js",
    }
    assert package(now, base) == {
        "name": "x",
        "dependencies": {"a": "2"},
        "main": "new.js",
        "scripts": {"test": "node --test"},
    }
    assert package({**base, "dependencies": {"a": "2"}}, base)["dependencies"] == {"a": "2"}  # type: ignore[index]


def test_the_last_of_equal_keys_counts_as_for_node() -> None:
    """A second `scripts` further down is no way around."""
    twice = b'{"scripts": {"test": "node --test"}, "scripts": {"test": "true"}}'
    base = b'{"scripts": {"test": "node --test"}}'
    content = with_base_settings("package.json", twice, base)
    assert content is not None
    assert json.loads(content) == json.loads(base)
    assert content.count(b"scripts") == 1
