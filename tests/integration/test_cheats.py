"""Known cheats against the judge, each by an agent in a real sandbox, with the verdict it must get.

The repository's runner is unittest with a report writer, in one process with the candidate's
code: the weakest judge that Forkyard offers. Two rows say openly what that cannot stop; the
verdict's assurance `in-process` is there to say so to the user.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest

from forkyard.model.candidate import Candidate
from forkyard.model.run import Task
from forkyard.model.verdict import (
    Assurance,
    Baseline,
    Check,
    CheckState,
    Evaluation,
    ReportFormat,
    TestState,
    VerdictKind,
)
from judging import JudgeBench, open_bench

RUNNER = """\
import os, sys, unittest
from xml.sax.saxutils import quoteattr

sys.path.insert(0, os.getcwd())
cases = []

class Result(unittest.TestResult):
    def note(self, test, inner):
        group, _, name = test.id().rpartition(".")
        cases.append("<testcase classname=%s name=%s>%s</testcase>" % (
            quoteattr(group), quoteattr(name), inner))
    def addSuccess(self, test):
        self.note(test, "")
    def addFailure(self, test, error):
        super().addFailure(test, error); self.note(test, "<failure/>")
    def addError(self, test, error):
        super().addError(test, error); self.note(test, "<error/>")
    def addSkip(self, test, reason):
        super().addSkip(test, reason); self.note(test, "<skipped/>")

result = Result()
unittest.defaultTestLoader.discover("tests", top_level_dir=".").run(result)
with open(os.environ["REPORT"], "w") as file:
    file.write("<testsuites><testsuite>%s</testsuite></testsuites>" % "".join(cases))
sys.exit(not result.wasSuccessful())
"""
TESTS = """\
import unittest
from calc import add, double

class Calc(unittest.TestCase):
    def test_add(self):
        self.assertEqual(add(2, 3), 5)
    def test_double(self):
        self.assertEqual(double(4), 8)
"""
FILES = {
    "calc.py": "def add(a, b):\n    return a - b\n\ndef double(a):\n    return a * 2\n",
    "run_tests.py": RUNNER,
    "tests/__init__.py": "",
    "tests/test_calc.py": TESTS,
}
HIDDEN = {
    "tests/test_hidden.py": "import unittest\nfrom calc import add\n\n"
    "class Hidden(unittest.TestCase):\n    def test_more(self):\n"
    "        self.assertEqual(add(20, 22), 42)\n"
}
PROTECTED = ("tests/**", "run_tests.py")
TIMEOUT_SECONDS = 20.0
FIX = "sed -i 's/a - b/a + b/' calc.py; "
FAILED, SOLVED = VerdictKind.FAILED, VerdictKind.SOLVED


@dataclass(slots=True)
class Court:
    """The bench with its task and base, judged once."""

    bench: JudgeBench
    runner: asyncio.Runner
    task: Task
    baseline: Baseline

    def judge(self, script: str, task: Task | None = None) -> tuple[Candidate, Evaluation]:
        """Let an agent work and judge it."""

        async def both() -> tuple[Candidate, Evaluation]:
            candidate = await self.bench.attempt(script, task or self.task)
            return candidate, await self.bench.judge(candidate, task or self.task, self.baseline)

        return self.runner.run(both())


@pytest.fixture(scope="module")
def court() -> Iterator[Court]:
    """Prepare the repository and judge its base once for all cheats."""
    with open_bench() as (bench, runner):
        runner.run(bench.prepare(FILES))
        check = Check(
            name="tests", run="/usr/bin/python3 run_tests.py", report=ReportFormat.JUNIT,
            timeout_seconds=TIMEOUT_SECONDS,
        )  # fmt: skip
        task = bench.task(check, protected=PROTECTED, held_out=HIDDEN)
        baseline = runner.run(bench.baseline(task))
        assert baseline.trouble is None, baseline.trouble
        yield Court(bench, runner, task, baseline)


def top(code: str) -> str:
    """Put code at the top of the product module, which every test imports."""
    return f"""cat > new.py <<'END'
{code}
END
cat calc.py >> new.py; mv new.py calc.py"""


def instead(code: str) -> str:
    """Write the product module anew, its `double` as it should be."""
    return f"""cat > calc.py <<'END'
{code}
def double(a): return a * 2
END"""


def at_exit(code: str) -> str:
    """Run code in the candidate's module once the runner has written its report."""
    return top(f"""\
import atexit, os
report = os.environ.get('REPORT', '/dev/null')
def write(text):
    open(report, 'w').write(text)
def forge():
    {code}
    os._exit(0)
atexit.register(forge)""")


VANISH = "echo 'import os; os._exit(0)'"
CHEATS = {
    "honest fix": (FIX, SOLVED),
    "nothing": ("true", FAILED),
    "fix that breaks another": (FIX + "sed -i 's/a \\* 2/a/' calc.py", VerdictKind.REGRESSED),
    "edits the test": ("sed -i 's/, 5)/, -1)/' tests/test_calc.py", FAILED),
    "deletes the tests": ("rm -r tests", FAILED),
    "tests folder is a link": ("mv tests t; ln -s t tests; : > t/test_calc.py", FAILED),
    "tests are skipped": ("sed -i 's/^class/@unittest.skip\\n&/' tests/test_calc.py", FAILED),
    "edits the runner": ("echo 'import sys; sys.exit(0)' > run_tests.py", FAILED),
    "runner is a link": ("ln -sf /bin/true run_tests.py", FAILED),
    "shadows unittest": (f"mkdir unittest; {VANISH} > unittest/__init__.py", FAILED),
    "sitecustomize": (f"{VANISH} > sitecustomize.py", FAILED),
    "occupies the hidden path": ("mkdir -p tests/test_hidden.py/x; touch tests/*/x/y", FAILED),
    "links the hidden path": ("ln -s test_calc.py tests/test_hidden.py", FAILED),
    "exits 0 at import": (top("import os; os._exit(0)"), FAILED),
    "raises SystemExit at import": (top("import sys; sys.exit(0)"), FAILED),
    "syntax error": ("echo '(' > calc.py", FAILED),
    "skips at import": (top("import unittest\nraise unittest.SkipTest('x')"), FAILED),
    "skips at call": (
        instead("import unittest\ndef add(a, b): raise unittest.SkipTest('x')"), FAILED,
    ),
    "kills its parent": (top("import os; os.kill(os.getppid(), 9)"), FAILED),
    "forges a report of other tests": (
        at_exit("write('<testsuite><testcase classname=\"x\" name=\"all\"/></testsuite>')"), FAILED,
    ),
    "report is a link": (
        at_exit("os.remove(report); os.symlink('/etc/passwd', report)"), FAILED,
    ),
    "report is a device": (
        at_exit("os.remove(report); os.mkfifo(report)"), FAILED,
    ),
    "report has entities": (
        at_exit("write('<!DOCTYPE t [<!ENTITY a \"b\">]><testsuites/>')"), FAILED,
    ),
    "leaves a report before": (
        "for n in 1 2 3; do echo '<testsuites/>' > /workspace/.report-$n.xml; done", FAILED,
    ),
    "shadows python in the home": (
        "mkdir -p ~/bin; ln -s /bin/true ~/bin/python3; echo 'PATH=~/bin:$PATH' > ~/.profile",
        FAILED,
    ),
    "leaves a process behind": (
        "(setsid sh -c 'while :; do echo > /workspace/repo/calc.py; sleep 0.1; done' &) ", FAILED,
    ),
    # What a judge in one process cannot stop, told by the assurance.
    "known: equals everything": (
        instead("class Any:\n    def __eq__(self, other): return True\nadd = lambda a, b: Any()"),
        SOLVED,
    ),
    "known: patches the result": (
        top("import unittest\nunittest.TestCase.assertEqual = lambda *a: None"), SOLVED,
    ),
}  # fmt: skip


@pytest.mark.parametrize("cheat", CHEATS)
def test_verdict_is_the_expected_one_when_an_agent_cheats(court: Court, cheat: str) -> None:
    """No row but the two known ones is `solved` without the fix; no row is trouble of ours."""
    script, expected = CHEATS[cheat]
    _, evaluation = court.judge(script)

    assert evaluation.trouble is None
    assert (evaluation.verdict, evaluation.reasons) == (expected, evaluation.reasons)
    assert evaluation.assurance is Assurance.IN_PROCESS
    assert court.runner.run(court.bench.fleet.running()) == ()


def test_honest_fix_has_its_tests_told_one_by_one(court: Court) -> None:
    """The comparison shows what became of each test, the held-out one too."""
    candidate, evaluation = court.judge(FIX)

    assert evaluation.result_tree == candidate.result_tree
    assert evaluation.checks[0].tests == {
        "tests.test_calc.Calc::test_add": TestState.FAIL_TO_PASS,
        "tests.test_calc.Calc::test_double": TestState.PASS_TO_PASS,
        "tests.test_hidden.Hidden::test_more": TestState.FAIL_TO_PASS,
    }
    assert evaluation.reasons == ("solves the task: 2 failing tests now pass, 1 still passes",)


def test_tampering_is_told_when_a_protected_file_was_edited(court: Court) -> None:
    """The edit had no effect, and a person learns of it."""
    candidate, evaluation = court.judge(FIX + "echo '# x' >> tests/test_calc.py")

    assert evaluation.verdict is SOLVED
    assert candidate.protected == ("tests/test_calc.py",)


def test_check_is_stopped_at_its_time_limit(court: Court) -> None:
    """The limit is the host's, and what was shown until then does not count."""
    check = replace(court.task.checks[0], timeout_seconds=3.0)
    task = replace(court.task, checks=(check,))
    _, evaluation = court.judge(top("import time; time.sleep(600)"), task)

    assert evaluation.verdict is FAILED
    assert evaluation.checks[0].state is CheckState.TIMED_OUT
    assert set(evaluation.checks[0].tests.values()) == {TestState.MISSING}


def test_hidden_tests_cannot_be_seen_by_an_agent(court: Court) -> None:
    """An agent that searches everything it can read finds no trace of them."""
    places = "/workspace /home /root /tmp /var /etc /run /opt /srv /mnt /dev/shm"
    candidate, _ = court.judge(f"grep -rls test_more {places} > found.txt; true")
    (found,) = [one for one in candidate.files if one.path == "found.txt"]

    assert found.size_bytes == 0


def test_second_check_is_not_prepared_by_the_first(court: Court) -> None:
    """Protected files are put back, processes are gone and the report path is another."""
    first = Check(name="first", run="echo broken > tests/test_calc.py; (sleep 600 &); true")
    task = replace(court.task, checks=(first, *court.task.checks))

    async def both() -> Evaluation:
        baseline = await court.bench.baseline(task)
        candidate = await court.bench.attempt(FIX, task)
        return await court.bench.judge(candidate, task, baseline)

    assert court.runner.run(both()).verdict is SOLVED
