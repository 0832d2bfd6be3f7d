"""Run all tests; where REPORT names a file, write what became of each as JUnit XML."""

from __future__ import annotations

import os
import sys
import unittest
from pathlib import Path
from xml.etree import ElementTree as ET

HERE = Path(__file__).resolve().parent


class Recorder(unittest.TextTestResult):
    """Remembers which tests started; unittest itself keeps only those that went wrong."""

    started: list[unittest.TestCase]

    def startTestRun(self) -> None:  # noqa: N802 - unittest's name
        """Begin with none."""
        super().startTestRun()
        self.started = []

    def startTest(self, test: unittest.TestCase) -> None:  # noqa: N802 - unittest's name
        """Remember one."""
        super().startTest(test)
        self.started.append(test)

    def report(self) -> ET.ElementTree:
        """Give one `testcase` per test, with a `failure` inside where it went wrong."""
        wrong = {test.id(): text for test, text in (*self.failures, *self.errors)}
        # A module that cannot be imported fails as a test that never started.
        names = dict.fromkeys([*(test.id() for test in self.started), *wrong])
        suite = ET.Element("testsuite", name="webhooks")
        for name in names:
            group, _, test = name.rpartition(".")
            case = ET.SubElement(suite, "testcase", classname=group, name=test)
            if name in wrong:
                ET.SubElement(case, "failure").text = wrong[name]
        return ET.ElementTree(suite)


def main() -> int:
    """Run, report, and say by the exit status whether all passed."""
    sys.path.insert(0, str(HERE.parent))
    tests = unittest.defaultTestLoader.discover(str(HERE))
    result = unittest.TextTestRunner(resultclass=Recorder, verbosity=2).run(tests)
    path = os.environ.get("REPORT")
    if path:
        result.report().write(path, encoding="utf-8", xml_declaration=True)
    return 0 if result.wasSuccessful() else 1


if __name__ == "__main__":
    sys.exit(main())
