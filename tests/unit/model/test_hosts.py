"""Entries of an allowlist: what they let in, and every form of an address that is no name."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forkyard.model.hosts import lets_in, plain_name, read_rule, rule_problem, suggestion

LABEL = st.from_regex(r"[a-z][a-z0-9]{0,8}", fullmatch=True)
NAME = st.lists(LABEL, min_size=2, max_size=4).map(".".join)


@pytest.mark.parametrize(
    ("entry", "host", "port", "is_in"),
    [
        ("example.org", "example.org", 443, True),
        ("example.org", "example.org", 80, True),
        ("EXAMPLE.org", "example.org", 443, True),
        ("example.org", "example.org", 22, False),
        ("example.org", "a.example.org", 443, False),
        ("example.org", "evil-example.org", 443, False),
        ("example.org", "example.org.evil.net", 443, False),
        ("*.example.org", "a.example.org", 443, True),
        ("*.example.org", "b.a.example.org", 443, True),
        ("*.example.org", "example.org", 443, False),
        ("*.example.org", "evil-example.org", 443, False),
        ("*.example.org", "aexample.org", 443, False),
        ("example.org:8443", "example.org", 8443, True),
        ("example.org:8443", "example.org", 443, False),
        ("*.example.org:8443", "a.example.org", 8443, True),
        ("xn--bcher-kva.example", "xn--bcher-kva.example", 443, True),
    ],
)
def test_an_entry_lets_in_what_it_names_and_nothing_like_it(
    entry: str, host: str, port: int, is_in: bool
) -> None:
    """A wildcard is for what lies below, a port for itself, and likeness counts for nothing."""
    assert lets_in([read_rule(entry)], host, port) is is_in


@pytest.mark.parametrize(
    "text",
    [
        "127.0.0.1", "127.1", "2130706433", "0x7f000001", "0x7f.1", "0177.0.0.1", "017700000001",
        "1.2.3.0x4", "a.b.1", "[::1]", "::1", "::ffff:127.0.0.1", "[::ffff:7f00:1]", "fe80::1%lo",
        "localhost", "example.org.", ".example.org", "a..b.org", "-a.org", "a-.org", "a_b.org",
        "b\u00fccher.example", "exam\uff50le.org", "a b.org", "", "a" * 64 + ".org", "0x.0x",
        "a.org\0", "example\u3002org",
    ],
)  # fmt: skip
def test_what_is_not_surely_a_name_is_none(text: str) -> None:
    """Addresses in every form that some program reads, and names that some program reads twice."""
    with pytest.raises(ValueError, match=r"."):
        plain_name(text)


@pytest.mark.parametrize(
    "entry",
    ["*", "*.org", "*.*.org", "a.*.org", "*a.example.org", "https://example.org", "u@example.org",
     "example.org/x", "example.org:0", "example.org:65536", "example.org:", "example.org:https",
     "10.0.0.0/8", "*.1.2.3", ""],
)  # fmt: skip
def test_an_entry_is_refused_in_words_when_it_names_no_host(entry: str) -> None:
    """And the words name it."""
    problem = rule_problem(entry)

    assert problem is not None
    assert repr(entry) in problem


@given(NAME, LABEL, st.sampled_from([80, 443]))
def test_wildcards_match_by_whole_labels_only(name: str, label: str, port: int) -> None:
    """Whatever the name: one more label below is in, glued to it or after it is out."""
    rules = [read_rule(f"*.{name}")]

    assert lets_in(rules, f"{label}.{name}", port)
    assert not lets_in(rules, name, port)
    assert not lets_in(rules, f"{label}{name}", port)
    assert not lets_in(rules, f"{name}.{label}x1", port)


@given(NAME, st.integers(min_value=1, max_value=65535))
def test_the_entry_that_a_refusal_suggests_lets_exactly_that_in(name: str, port: int) -> None:
    """What a person is told to add works."""
    assert lets_in([read_rule(suggestion(name, port))], name, port)
