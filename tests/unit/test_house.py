"""Rules of the house that no linter knows: sizes, names in documents, what no file may name."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from forkyard.errors import ForkyardError

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "forkyard"
SOFT_LINES = 400
HARD_LINES = 600
FOLDERS_NOT_OURS = {".cache", ".git", ".venv", "__pycache__", "dist", "build"}
TEXT_SUFFIXES = {"", ".md", ".py", ".sh", ".toml", ".txt", ".in", ".yaml", ".yml", ".json"}
# Written in pieces, so that this file does not name what it forbids.
REGISTRY_HOSTS = tuple(
    ".".join(parts)
    for parts in (
        ("pypi", "org"),
        ("files", "pythonhosted", "org"),
        ("registry", "npmjs", "org"),
        ("deb", "debian", "org"),
        ("archive", "ubuntu", "com"),
        ("proxy", "golang", "org"),
    )
)
MACHINE_PATH = re.compile(r"(?<![\w.}\]/])/" + "work" + r"(?![\w.-])")


def committed_texts() -> list[Path]:
    """List the text files of the project, caches and environments left out."""
    found = []
    for path in ROOT.rglob("*"):
        parts = path.relative_to(ROOT).parts
        hidden = any(part.endswith("_cache") or part == ".hypothesis" for part in parts)
        if hidden or FOLDERS_NOT_OURS.intersection(parts) or not path.is_file():
            continue
        if path.suffix in TEXT_SUFFIXES:
            found.append(path)
    return found


def line_counts(folder: Path) -> dict[str, int]:
    """Count the lines of each Python file below a folder."""
    return {
        str(path.relative_to(ROOT)): len(path.read_text(encoding="utf-8").splitlines())
        for path in folder.rglob("*.py")
    }


def test_no_source_file_is_too_long_to_have_one_subject() -> None:
    """Every source file ends before the hard limit, and hardly any passes the soft one."""
    counts = line_counts(SOURCE)

    assert {name: count for name, count in counts.items() if count > HARD_LINES} == {}
    beyond = [name for name, count in counts.items() if count > SOFT_LINES]
    assert len(beyond) <= len(counts) // 20, beyond


def test_each_package_is_named_in_the_architecture() -> None:
    """The page that says how the code is cut knows every package and module at the top."""
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    names = {path.stem for path in SOURCE.iterdir() if not path.name.startswith("_")}

    assert sorted(name for name in names if f"`{name}`" not in text and name != "py") == []


def test_each_folder_of_the_state_directory_is_in_the_architecture() -> None:
    """The on-disk format that the page tells is the one that config.py tells."""
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    format_of_config = (SOURCE / "config.py").read_text(encoding="utf-8").split('"""')[1]
    names = re.findall(r"(?m)^    ([a-z][a-z.-]*)[/ \n]", format_of_config)

    assert {"layers", "objects", "trash"} <= set(names)
    assert [name for name in names if f"`{name}/" not in text and f"`{name}`" not in text] == []


def test_each_error_code_and_its_statuses_are_documented() -> None:
    """The reference page has one row per error class, with the numbers the class has."""
    text = (ROOT / "docs" / "exit-codes.md").read_text(encoding="utf-8")
    missing = [
        code
        for code, error in ForkyardError.by_code.items()
        if f"| `{code}` | {error.exit_code} | {error.http_status} |" not in text
    ]

    assert missing == []


def test_each_exit_status_of_an_error_is_documented() -> None:
    """The first table of the page knows every status an error can end with."""
    text = (ROOT / "docs" / "exit-codes.md").read_text(encoding="utf-8")
    statuses = {error.exit_code for error in ForkyardError.by_code.values()} | {0, 1, 130}

    assert sorted(status for status in statuses if f"\n| {status} | " not in text) == []


STAND_INS = ("tests", "stand_ins")
"""What answers, on this machine alone, under the names that the first seed's template asks for."""


@pytest.mark.parametrize("host", REGISTRY_HOSTS)
def test_no_file_names_a_registry(host: str) -> None:
    """Whatever index a user's tools are set up for must do."""
    naming = [
        str(path.relative_to(ROOT))
        for path in committed_texts()
        if path.relative_to(ROOT).parts[:2] != STAND_INS
        and host in path.read_text(encoding="utf-8", errors="replace")
    ]

    assert naming == []


def test_no_file_names_a_folder_of_one_machine() -> None:
    """Nothing in the project depends on where it was written."""
    naming = [
        str(path.relative_to(ROOT))
        for path in committed_texts()
        if MACHINE_PATH.search(path.read_text(encoding="utf-8", errors="replace"))
    ]

    assert naming == []


def test_the_packages_that_are_pinned_are_those_that_are_declared() -> None:
    """The input of the runtime pins says the same as pyproject.toml."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lines = (ROOT / "requirements" / "runtime.in").read_text(encoding="utf-8").splitlines()

    assert sorted(project["dependencies"]) == sorted(
        line for line in lines if line and not line.startswith("#")
    )


@pytest.mark.parametrize("name", ["runtime.txt", "dev.txt"])
def test_every_pin_has_a_hash_and_no_address(name: str) -> None:
    """Pins hold versions and hashes only."""
    text = (ROOT / "requirements" / name).read_text(encoding="utf-8")
    whole = text.replace("\\\n", " ").splitlines()

    assert [line for line in whole if "==" not in line or "--hash=sha256:" not in line] == []
    assert "://" not in text


def test_the_readme_fits_on_one_page() -> None:
    """The first page stays short."""
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 140


EXCEPTION = re.compile(r"#\s*(?:ruff: )?noqa\b(?P<rest>.*)")
REASONED = re.compile(r": (?:[A-Z]+[0-9]+(?:, )?)+ (?:- \S|\(\S).*")


@pytest.mark.parametrize("folder", ["src", "tests", "benchmarks", "examples"])
def test_each_exception_from_the_linter_says_why(folder: str) -> None:
    """A mark names its rules and its reason."""
    bare = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in sorted((ROOT / folder).rglob("*.py"))
        if path != Path(__file__)
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if (found := EXCEPTION.search(line)) and not REASONED.fullmatch(found["rest"])
    ]

    assert bare == []
