"""Reading JUnit reports that hostile code may have written."""

from __future__ import annotations

import time
from xml.sax.saxutils import quoteattr

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forkyard.evaluation.reports import junit
from forkyard.evaluation.reports.junit import ReportError
from forkyard.model.verdict import TestOutcome

PASSED, FAILED, SKIPPED = TestOutcome.PASSED, TestOutcome.FAILED, TestOutcome.SKIPPED

NESTED_END = b"<testcase name='b'/></testsuite>"


def report(body: str) -> bytes:
    """Wrap test cases in a report."""
    return f"<testsuites><testsuite name='s'>{body}</testsuite></testsuites>".encode()


def test_each_outcome_is_read_when_the_report_is_pytests() -> None:
    """Failure and error fail, skipped and expected failures are skipped, the rest passes."""
    text = report(
        """
        <testcase classname="t.mod" name="ok" time="0.1"/>
        <testcase classname="t.mod" name="bad"><failure message="m">text</failure></testcase>
        <testcase classname="t.mod" name="err"><error/></testcase>
        <testcase classname="t.mod" name="skip"><skipped type="pytest.skip"/></testcase>
        <testcase classname="t.mod" name="out"><system-out>x</system-out></testcase>
        <testcase classname="" name="t.gone"><error message="collection failure"/></testcase>
        """
    )

    assert junit.parse(text) == {
        "t.mod::ok": PASSED,
        "t.mod::bad": FAILED,
        "t.mod::err": FAILED,
        "t.mod::skip": SKIPPED,
        "t.mod::out": PASSED,
        "t.gone": FAILED,
    }


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"<testsuite name='p'><testcase name='a'/></testsuite>", {"p::a": PASSED}),
        (
            b"<testsuite name='o'><testsuite name='i'><testcase name='a'/></testsuite>"
            + NESTED_END,
            {"i::a": PASSED, "o::b": PASSED},
        ),
        (b"<testsuites><testcase name='a'/></testsuites>", {"a": PASSED}),
        (report("<testcase classname='c' name='a' status='failed'/>"), {"c::a": FAILED}),
        (b"\xef\xbb\xbf" + report("<testcase classname='c' name='a'/>"), {"c::a": PASSED}),
        (b"<testsuites/>", {}),
        (report("<testcase/>"), {"s::": PASSED}),
    ],
)
def test_other_runners_shapes_are_read(text: bytes, expected: dict[str, TestOutcome]) -> None:
    """Nested suites, a bare suite, a byte order mark, no suite at all."""
    assert junit.parse(text) == expected


def test_worst_outcome_counts_when_an_id_is_reported_twice() -> None:
    """A second, forged pass does not hide a failure, whatever the order."""
    bad = "<testcase classname='c' name='a'><failure/></testcase>"
    good = "<testcase classname='c' name='a'/>"
    skip = "<testcase classname='c' name='a'><skipped/></testcase>"

    for body in (bad + good, good + bad, good + skip + bad):
        assert junit.parse(report(body)) == {"c::a": FAILED}
    assert junit.parse(report(good + skip)) == {"c::a": SKIPPED}


def test_only_direct_children_decide_when_output_holds_markup() -> None:
    """A failure element inside what a test printed is output, and a case inside a case no test."""
    body = (
        "<testcase classname='c' name='a'><system-out><failure/><testcase name='b'/></system-out>"
        "</testcase>"
    )
    assert junit.parse(report(body)) == {"c::a": PASSED}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"", "not well-formed"),
        (b"<testsuites>", "not well-formed"),
        (b"<html/>", "starts with <html>"),
        (b"<testsuites><testsuite></testsuites>", "not well-formed"),
        (b"<!DOCTYPE testsuites><testsuites/>", "document type"),
        (b"<!DOCTYPE t [<!ENTITY x SYSTEM 'file:///etc/passwd'>]><testsuites>&x;</testsuites>",
         "document type"),
        (b"<testsuites>&undefined;</testsuites>", "not well-formed"),
        (b"<?xml version='1.0' encoding='no-such'?><testsuites/>", "cannot be decoded"),
        (b"<testsuites>" + b"<a>" * 100 + b"</a>" * 100 + b"</testsuites>", "nested"),
        (b"<testsuites>" + b"<a>" * 10**6, "nested"),
        (b"<testsuites>\xff\xfe</testsuites>", "not well-formed"),
        (b"\0" * 100, "not well-formed"),
    ],
)  # fmt: skip
def test_report_is_refused_with_a_reason_when_it_is_hostile_or_broken(
    text: bytes, words: str
) -> None:
    """Each refusal is a clause; nothing is half believed."""
    before = time.monotonic()
    with pytest.raises(ReportError, match=words):
        junit.parse(text)

    assert time.monotonic() - before < 2


def test_report_is_refused_when_it_is_larger_than_the_limit() -> None:
    """The size is looked at before the text."""
    with pytest.raises(ReportError, match="bytes"):
        junit.parse(b" " * (junit.MAX_BYTES + 1))


def test_report_is_refused_when_it_names_too_many_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is bounded by the number of ids."""
    monkeypatch.setattr(junit, "MAX_TESTS", 3)
    body = "".join(f"<testcase name='{n}'/>" for n in range(4))

    with pytest.raises(ReportError, match="more than 3 tests"):
        junit.parse(report(body))


def test_ids_stay_apart_when_they_are_longer_than_the_limit() -> None:
    """A cut id keeps a digest of the whole."""
    one, two = (junit.test_id("c", "x" * 1000 + end) for end in "ab")

    assert one != two
    assert len(one) == len(two) == junit.MAX_ID


def test_giant_names_stay_apart_when_they_differ_at_the_end_only() -> None:
    """A name of a megabyte becomes a short id of its own."""
    body = "".join(f"<testcase classname='c' name='{'x' * 1_000_000}{end}'/>" for end in "ab")
    names = list(junit.parse(report(body)))

    assert [len(name) for name in names] == [junit.MAX_ID] * 2
    assert names[0] != names[1]


@given(st.binary(max_size=400))
def test_nothing_but_a_report_error_comes_out_of_random_bytes(text: bytes) -> None:
    """The reader has no other way to fail."""
    try:
        junit.parse(text)
    except ReportError:
        return


@given(
    st.dictionaries(
        st.text(
            st.characters(codec="utf-8", exclude_categories=("C", "Z")), min_size=1, max_size=30
        ),
        st.sampled_from([PASSED, FAILED, SKIPPED]),
        max_size=8,
    )
)
def test_outcomes_come_back_when_written_as_a_report(outcomes: dict[str, TestOutcome]) -> None:
    """Whatever a test is called, its outcome is found under its id."""
    inner = {PASSED: "", FAILED: "<failure/>", SKIPPED: "<skipped/>"}
    body = "".join(
        f"<testcase classname='c' name={quoteattr(name)}>{inner[outcome]}</testcase>"
        for name, outcome in outcomes.items()
    )

    assert junit.parse(report(body)) == {f"c::{name}": one for name, one in outcomes.items()}
