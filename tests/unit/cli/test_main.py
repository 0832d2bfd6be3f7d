"""The door is light, and it says what scripts rely on."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from click.testing import CliRunner

from forkyard import __version__
from forkyard.cli.main import root
from forkyard.errors import ForkyardError

HEAVY = (
    "aiohttp", "anyio", "asyncio", "cryptography", "fastapi", "genai_prices", "httpx2", "pydantic",
    "rich", "sqlite3", "ssl", "starlette", "uvicorn", "yaml", "zstandard",
)  # fmt: skip
VERBS = [
    "demo", "run", "status", "watch", "logs", "cancel", "retry", "regrade", "compare", "diff",
    "apply", "undo", "template", "snapshot", "workspace", "agent", "secret", "doctor", "serve",
    "connections", "usage",
    "gc",
]  # fmt: skip
GROUPS = ["template", "snapshot", "workspace", "agent", "secret"]


@pytest.mark.parametrize("argument", ["--help", "--version", "-h"])
def test_help_and_version_import_nothing_heavy(argument: str) -> None:
    """Only click and the standard library's light parts are loaded for them."""
    program = (
        "import json, sys\n"
        "from forkyard.cli.main import root\n"
        "try:\n"
        f"    root.main([{argument!r}], prog_name='forkyard', standalone_mode=False)\n"
        "finally:\n"
        "    print(json.dumps(sorted(sys.modules)), file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)
    loaded = set(json.loads(done.stderr))

    assert loaded & set(HEAVY) == set()
    ours = {name for name in loaded if name.startswith("forkyard.")}
    assert ours == {"forkyard.cli", "forkyard.cli.main", "forkyard.errors"}


@pytest.mark.parametrize(
    ("words", "found"), [("forkyard re", {"retry", "regrade"}), ("forkyard ", set(VERBS))]
)
def test_completion_imports_nothing_heavy(words: str, found: set[str]) -> None:
    """A shell asks on every key."""
    program = (
        "import json, os, sys\n"
        "os.environ.update(_FORKYARD_COMPLETE='bash_complete',"
        f" COMP_WORDS={words!r}, COMP_CWORD='1')\n"
        "from forkyard.cli.main import root\n"
        "try:\n"
        "    root.main(prog_name='forkyard', standalone_mode=False)\n"
        "finally:\n"
        "    print(json.dumps(sorted(sys.modules)), file=sys.stderr)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], check=False, capture_output=True, text=True
    )

    assert set(json.loads(done.stderr)) & set(HEAVY) == set()
    assert {line.split(",")[1] for line in done.stdout.split()} == found


def test_the_verbs_are_those_of_this_release() -> None:
    """No stub of a later one."""
    assert root.list_commands(None) == VERBS  # type: ignore[arg-type]


def test_help_documents_every_exit_code() -> None:
    """Each class's code stands in the help."""
    text = CliRunner().invoke(root, ["--help"]).output
    codes = {kind.exit_code for kind in ForkyardError.by_code.values()} | {0, 1, 130}

    assert [code for code in codes if f"\n    {code}  " not in text.replace("\n  ", "\n  ")] == []


def test_the_version_is_the_package_s() -> None:
    """One place says it."""
    assert __version__ in CliRunner().invoke(root, ["--version"]).output


def leaves() -> list[list[str]]:
    """List every command with its words."""
    found: list[list[str]] = []
    for verb in VERBS:
        command = root.get_command(None, verb)  # type: ignore[arg-type]
        below = getattr(command, "commands", None)
        found += [[verb]] if below is None else [[verb, name] for name in below]
    return found


@pytest.mark.parametrize("words", leaves(), ids=" ".join)
def test_every_command_has_json_help_and_an_example(words: list[str]) -> None:
    """So that people and programs can use each one alike."""
    text = CliRunner().invoke(root, [*words, "--help"]).output

    assert "--json" in text
    assert "Example" in text
    assert f"forkyard {' '.join(words)}" in text


def test_a_mistyped_verb_is_answered_with_the_nearest_one() -> None:
    """And with the exit code of bad usage."""
    done = CliRunner().invoke(root, ["stauts"])

    assert done.exit_code == 2
    assert "did you mean 'status'" in done.output


@pytest.mark.parametrize("group", [[], *([name] for name in GROUPS)])
def test_no_summary_is_cut_when_commands_are_listed(group: list[str]) -> None:
    """What a command does is read from the list, at the usual width."""
    listed = CliRunner().invoke(root, [*group, "--help"], terminal_width=80).output

    assert [line for line in listed.splitlines()[1:] if line.endswith("...")] == []
