"""Strict YAML: what is accepted, what is refused, and with which line."""

from __future__ import annotations

import time

import pytest
import yaml as pyyaml
from hypothesis import given
from hypothesis import strategies as st

from forkyard.errors import ConfigError
from forkyard.wire import yaml

PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(min_value=-(10**17), max_value=10**17)
    | st.text(st.characters(codec="utf-8", exclude_categories=("Cs", "Cc")), max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text("abcxyz_-", min_size=1, max_size=8), inner, max_size=4)
    ),
    max_leaves=20,
)
LAUGHS = "a0: &a0 [x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 12)
)


@given(PLAIN)
def test_values_come_back_when_written_by_a_yaml_writer(value: object) -> None:
    """Plain data survives the way through a file."""
    text = pyyaml.safe_dump({"root": value}, allow_unicode=True)

    assert yaml.load(text).data == {"root": value}


@pytest.mark.parametrize(
    "word",
    [
        "on",
        "off",
        "yes",
        "no",
        "y",
        "True",
        "2020-01-01",
        "1_000",
        "0777",
        "0x1f",
        "1e3",
        ".inf",
        "12:30",
    ],
)
def test_words_stay_text_when_yaml_1_1_would_change_them(word: str) -> None:
    """Only true, false, null, whole numbers and decimals mean something else than text."""
    assert yaml.load(f"a: {word}").data == {"a": word}


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("a: 1\nb: 2\na: 3\n", 3, "given twice, first on line 1"),
        ("a:\n  <<: {b: 1}\n", 2, "merge keys"),
        ("a: 1\nb: !!str 3\n", 2, "tags such as"),
        ("a: !!python/object/apply:os.system [id]\n", 1, "tags such as"),
        ("a: 1\n---\nb: 2\n", 2, "second document"),
        ("? [a]\n: b\n", 1, "a key must be plain text"),
        ("a: 1\nb: *gone\n", 2, "names no finished value"),
        ("a: &a [*a]\n", 1, "names no finished value"),
        ("a: 1\nb: \0\n", 2, "NUL"),
        ('a: 1\nb: "x\\0"\n', 2, "NUL"),
        ("a: 1\nb: \x07\n", 2, "does not allow"),
        ("a: [1\nb: 2\n", 2, "not YAML"),
        ("- a\nb: c\n", 2, "not YAML"),
        ("a:\n\tb: 1\n", 2, "not YAML"),
    ],
)
def test_text_is_refused_with_its_line_when_it_is_no_plain_yaml(
    text: str, line: int, words: str
) -> None:
    """Each refusal names the file, the line and the reason."""
    with pytest.raises(ConfigError) as raised:
        yaml.load(text, "x.yaml")

    (problem,) = raised.value.problems
    assert (problem.file, problem.line) == ("x.yaml", line)
    assert words in problem.message


@pytest.mark.parametrize(
    "text",
    [
        LAUGHS,
        "a: " + "[" * 100_000,
        "{a: " * 10_000,
        "- " * 100_000,
        "x" * 10 * 1024**2,
        "- a\n" * 200_000,
        "a: [\n" * 10_000,
        "\ud800",
        "&a " * 50_000,
    ],
    ids=["laughs", "flow", "maps", "lists", "10-mb", "many", "lines", "surrogate", "anchors"],
)
def test_hostile_text_is_refused_quickly_when_it_asks_for_too_much(text: str) -> None:
    """Size, depth and expansion are bounded before memory or time is spent."""
    before = time.monotonic()
    with pytest.raises(ConfigError):
        yaml.load(text)

    assert time.monotonic() - before < 5


def test_alias_gives_the_same_value_when_within_bounds() -> None:
    """Aliases are a convenience, so they stay."""
    assert yaml.load("a: &x {k: 1}\nb: *x\n").data == {"a": {"k": 1}, "b": {"k": 1}}


def test_position_is_that_of_the_deepest_known_part_when_the_rest_is_missing() -> None:
    """A problem about an absent key points at what should hold it."""
    document = yaml.load("a:\n  b:\n    - c: 1\n    - d: 2\n")

    assert document.position(("a",)) == 1
    assert document.position(("a", "b", 1, "d")) == 4
    assert document.position(("a", "b", 1, "zz")) == 4
    assert document.position(("zz",)) == 1


def test_empty_text_is_an_empty_document() -> None:
    """No content is a value of its own, for the caller to complain about."""
    assert yaml.load("# nothing\n").data is None
