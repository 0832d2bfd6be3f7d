"""Patterns name what a person means by them."""

from __future__ import annotations

import pytest

from forkyard.candidate import rules


@pytest.mark.parametrize(
    ("pattern", "path", "is_named"),
    [
        ("tests/**", "tests/a.py", True),
        ("tests/**", "tests/deep/a.py", True),
        ("tests/**", "tests", True),
        ("tests/**", "mytests/a.py", False),
        ("tests/**", "src/tests/a.py", False),
        ("tests/", "src/tests/a.py", True),
        ("tests", "src/tests/a.py", True),
        ("/tests", "src/tests/a.py", False),
        ("**/tests/**", "src/tests/a.py", True),
        ("**/tests/**", "tests/a.py", True),
        ("conftest.py", "a/b/conftest.py", True),
        ("conftest.py", "a/b/my_conftest.py", False),
        ("*.pth", "a/b.pth", True),
        ("src/*.py", "src/a.py", True),
        ("src/*.py", "src/a/b.py", False),
        ("src/**/b.py", "src/b.py", True),
        ("src/**/b.py", "src/x/y/b.py", True),
        ("a?c", "abc", True),
        ("a?c", "a/c", False),
        ("a.c", "abc", False),
        ("[x]", "[x]", True),
        ("*", "a\nb", True),
        (".github/workflows/", ".github/workflows/ci.yml", True),
        ("jest.config.*", "web/jest.config.mjs", True),
    ],
)
def test_pattern_names_a_path(pattern: str, path: str, *, is_named: bool) -> None:
    """A name alone is found anywhere, a path from the root, a folder with all below it."""
    assert rules.matches(path, [pattern]) is is_named


@pytest.mark.parametrize(
    ("pattern", "link", "leads_around"),
    [
        ("tests/unit/**", "tests", True),
        ("tests/unit/a.py", "tests/unit", True),
        ("tests/**", "tests", True),
        ("tests/unit/**", "test", False),
        ("tests/unit/**", "src/tests", False),
        ("t*/unit/a.py", "tests", True),
        ("**/tests/**", "anything", False),
        ("conftest.py", "src", False),
    ],
)
def test_link_in_a_patterns_way_is_seen(pattern: str, link: str, *, leads_around: bool) -> None:
    """Only a link in a place that the pattern itself spells out counts."""
    assert rules.could_hold(link, [pattern]) is leads_around


def test_known_control_files_are_named() -> None:
    """Files that run code when a tree is opened, built or merged."""
    for path in (
        "tests/conftest.py",
        "package.json",
        "web/package.json",
        ".github/workflows/x.yml",
        ".vscode/tasks.json",
        ".claude/settings.json",
        ".envrc",
        "sub/.gitattributes",
        ".husky/pre-commit",
        "Makefile",
    ):
        assert rules.matches(path, rules.CONTROL_FILES), path
    assert not rules.matches("src/app.py", rules.CONTROL_FILES)
