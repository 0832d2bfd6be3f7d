"""JUnit XML -> outcome per test id.

The report was written where candidate code ran, so it is read as a stream with bounds on
everything, and a document type or entity is refused at its first byte; `apart.read_apart` runs
this module in a process of its own without privileges. Nothing of the report but ids and
outcomes is believed: not its counters, not its times.
"""

from __future__ import annotations

import hashlib
import json
import os
import resource
import sys
from dataclasses import dataclass, field
from xml.parsers import expat

from forkyard.model.verdict import TestOutcome
from forkyard.shim.ids import IDS

MAX_BYTES = 64 * 1024**2
MAX_DEPTH = 64
MAX_TESTS = 200_000
MAX_ID = 400
"""Longer ids (parametrised by whole documents) are cut and told apart by a digest."""

_MAX_RAW = 4096
"""A name is looked at letter by letter up to here."""

PARSE_SECONDS = 120
PARSE_MEMORY_BYTES = 2 * 1024**3

_WORST_FIRST = (TestOutcome.FAILED, TestOutcome.SKIPPED, TestOutcome.PASSED)
_CHUNK = 1024**2


class ReportError(Exception):
    """The text is no JUnit report that can be used; the message is a clause for a person."""


def parse(content: bytes) -> dict[str, TestOutcome]:
    """Read a report.

    Args:
        content: The whole file.

    Returns:
        Outcome per id ``class::name``, in the report's order; of an id that is reported more
        than once, the worst.

    Raises:
        ReportError: It is no well-formed report, or goes beyond a bound.
    """
    if len(content) > MAX_BYTES:
        raise ReportError(f"the report has {len(content)} bytes, {MAX_BYTES} at most are read")
    reader = _Reader()
    try:
        for start in range(0, len(content), _CHUNK):
            reader.parser.Parse(content[start : start + _CHUNK], False)  # noqa: FBT003 - positional in expat
        reader.parser.Parse(b"", True)  # noqa: FBT003 - positional in expat
    except expat.ExpatError as error:
        raise ReportError(f"the report is not well-formed XML: {error}") from error
    except (LookupError, ValueError) as error:
        raise ReportError(f"the report cannot be decoded: {error}") from error
    return reader.outcomes


@dataclass(slots=True)
class _Case:
    name: str
    depth: int
    outcome: TestOutcome = TestOutcome.PASSED


@dataclass(slots=True)
class _Reader:
    """Handlers of one parser."""

    outcomes: dict[str, TestOutcome] = field(default_factory=dict)
    depth: int = 0
    suites: list[str] = field(default_factory=list)
    case: _Case | None = None
    parser: expat.XMLParserType = field(init=False)

    def __post_init__(self) -> None:
        self.parser = expat.ParserCreate()
        self.parser.StartElementHandler = self.start
        self.parser.EndElementHandler = self.end
        self.parser.StartDoctypeDeclHandler = self.refuse
        self.parser.EntityDeclHandler = self.refuse

    def refuse(self, *_: object) -> None:
        raise ReportError("the report has a document type or entities, which are not accepted")

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise ReportError(f"the report is nested more than {MAX_DEPTH} levels deep")
        tag = _local(tag)
        if self.depth == 1 and tag not in {"testsuites", "testsuite"}:
            raise ReportError(f"the report starts with <{_clean(tag)[:40]}>, not <testsuites>")
        if self.case is not None:
            # Only direct children: text that a test printed may hold anything.
            if self.depth == self.case.depth + 1:
                self.case.outcome = _worse(self.case.outcome, tag)
        elif tag == "testsuite":
            self.suites.append(attributes.get("name", ""))
        elif tag == "testcase":
            suite = self.suites[-1] if self.suites else ""
            group = attributes.get("classname", suite)
            name = test_id(group, attributes.get("name", ""))
            self.case = _Case(name=name, depth=self.depth)
            if attributes.get("status", "").lower() in {"failed", "error"}:
                self.case.outcome = TestOutcome.FAILED

    def end(self, tag: str) -> None:
        if self.case is not None and self.depth == self.case.depth:
            self._keep(self.case)
            self.case = None
        elif self.case is None and _local(tag) == "testsuite":
            self.suites.pop()
        self.depth -= 1

    def _keep(self, case: _Case) -> None:
        before = self.outcomes.get(case.name)
        if before is None and len(self.outcomes) >= MAX_TESTS:
            raise ReportError(f"the report has more than {MAX_TESTS} tests")
        both = [case.outcome] if before is None else [case.outcome, before]
        self.outcomes[case.name] = min(both, key=_WORST_FIRST.index)


def test_id(group: str, name: str) -> str:
    """Give the id of a test: ``class::name`` in one line, of bounded length."""
    group, name = _clean(group), _clean(name)
    whole = f"{group}::{name}" if group else name or "(no name)"
    if len(whole) <= MAX_ID:
        return whole
    digest = hashlib.sha256(whole.encode()).hexdigest()[:12]
    return f"{whole[: MAX_ID - 13]}~{digest}"


test_id.__test__ = False  # type: ignore[attr-defined]  # a test runner would collect it by name


def _clean(text: str) -> str:
    if len(text) > _MAX_RAW:
        digest = hashlib.sha256(text.encode()).hexdigest()[:12]
        text = f"{text[:_MAX_RAW]}~{digest}"
    kept = "".join(letter if letter.isprintable() else " " for letter in text)
    return " ".join(kept.split())


def _local(tag: str) -> str:
    return tag.rpartition(":")[2].rpartition("}")[2]


def _worse(before: TestOutcome, tag: str) -> TestOutcome:
    match tag:
        case "failure" | "error":
            return TestOutcome.FAILED
        case "skipped" | "skip":
            return before if before is TestOutcome.FAILED else TestOutcome.SKIPPED
        case _:
            return before


def main() -> None:
    """Read a report from standard input, print outcomes as JSON, with nothing to lose."""
    resource.setrlimit(resource.RLIMIT_AS, (PARSE_MEMORY_BYTES, PARSE_MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (PARSE_SECONDS, PARSE_SECONDS))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if os.geteuid() == 0:
        os.setgroups([])
        os.setresgid(*[IDS.nobody] * 3)
        os.setresuid(*[IDS.nobody] * 3)
    resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    answer: dict[str, object]
    try:
        answer = {"outcomes": parse(sys.stdin.buffer.read(MAX_BYTES + 1))}
    except ReportError as error:
        answer = {"problem": str(error)}
    sys.stdout.write(json.dumps(answer))


if __name__ == "__main__":
    main()
