"""The seed's story, on a published package: a bug, three agents, and only the honest fix is taken.

The package really has the bug: sequences that switch a terminal's private modes, such as the
cursor's visibility, are not stripped. The developer's failing test for it is not committed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

import subjects

SOURCE = "colorama/ansitowin32.py"
TEST = "colorama/tests/ansitowin32_test.py"
TESTS = "python3 -B -m unittest discover -q -p '*_test.py'"
FAILING_TEST = r"""

class PrivateModeTest(TestCase):

    def testPrivateModesAreStripped(self):
        stream = StringIO()
        AnsiToWin32(stream, strip=True).write('\033[?25lquiet\033[?25h')
        self.assertEqual(stream.getvalue(), 'quiet')
"""
HONEST = r"""
python3 - <<'CODE'
from pathlib import Path
path = Path("colorama/ansitowin32.py")
path.write_text(path.read_text().replace(r"\033\\[((?:", r"\033\\[\??((?:"))
CODE
"""
CHEAT = r"""
sed -i "s/self.assertEqual(stream.getvalue(), 'quiet')/pass/" colorama/tests/ansitowin32_test.py
"""
IDLE = "echo 'The cause is in the regular expressions.' > FINDINGS.txt"


def forkyard(*arguments: str, code: int = 0) -> str:
    """Run the program as a person does; give what it prints."""
    ran = subprocess.run(
        [sys.executable, "-m", "forkyard", *arguments],
        check=False,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=240,
    )
    assert ran.returncode == code, ran.stderr
    return ran.stdout


def asked(*arguments: str) -> Mapping[str, object]:
    """Run the program and read the object it ends with."""
    answer = json.loads(forkyard(*arguments, "--json").splitlines()[-1])
    assert isinstance(answer, dict)
    return answer


def listing(workspace: str) -> dict[str, str]:
    """Give the digest of each file of the repository in a workspace, .git left out."""
    command = "find . -path ./.git -prune -o -type f -print0 | xargs -0 sha256sum"
    lines = forkyard("workspace", "exec", workspace, "-c", command).splitlines()
    return {name: digest for digest, _, name in (line.partition("  ") for line in lines)}


def task_file(folder: Path) -> Path:
    """Write the task as the developer does."""
    agents = [
        {"name": name, "driver": "command", "command": command}
        for name, command in (("honest", HONEST), ("cheat", CHEAT), ("idle", IDLE))
    ]
    task = {
        "name": "private-modes",
        "prompt": "testPrivateModesAreStripped fails. Fix the implementation, not the test.",
        "start": {"snapshot": "private-modes"},
        "agents": agents,
        "checks": [{"name": "tests", "run": TESTS}],
        "protected": ["colorama/tests/**"],
    }
    file = folder / "task.yaml"
    file.write_text(json.dumps(task))  # JSON is YAML too
    return file


@pytest.mark.deep
@pytest.mark.usefixtures("home")
def test_the_honest_fix_wins_and_goes_where_the_uncommitted_test_lies(tmp_path: Path) -> None:
    """From the developer's workspace to the patch in it, and in a checkout on the host."""
    repository = subjects.unpack("colorama-0.4.6", tmp_path)
    template = tmp_path / "colorama.yaml"
    template.write_text(f"spec: {{image: host, repository: {{path: '{repository}'}}}}\n")
    forkyard("template", "apply", str(template))
    forkyard("template", "build", "colorama")
    workspace = str(asked("workspace", "create", "--template", "colorama", "--name", "dev")["id"])
    add_test = f"cat >> {TEST} <<'TEXT'\n{FAILING_TEST}TEXT"
    forkyard("workspace", "exec", workspace, "-c", f"{TESTS} && {add_test}")
    forkyard("workspace", "exec", workspace, "-c", TESTS, code=1)
    before = listing(workspace)
    forkyard("workspace", "stop", workspace)
    forkyard("snapshot", "create", "private-modes", "--workspace", workspace)

    tasks = asked("run", str(task_file(tmp_path)))["tasks"]
    assert isinstance(tasks, list)
    (task,) = tasks

    by_agent = {one["agent"]: one for one in task["attempts"]}
    verdicts = {name: one["evaluation"]["verdict"] for name, one in by_agent.items()}
    assert verdicts == {"honest": "solved", "cheat": "failed", "idle": "failed"}
    winner = by_agent["honest"]["candidate"]["id"]
    assert task["winner"] == winner
    assert [one["path"] for one in by_agent["honest"]["candidate"]["files"]] == [SOURCE]

    # Into the developer's own workspace, where the uncommitted test lies.
    forkyard("apply", winner, "--workspace", workspace)
    after = listing(workspace)
    assert {name for name in before | after if before.get(name) != after.get(name)} == {
        f"./{SOURCE}"
    }
    forkyard("workspace", "exec", workspace, "-c", TESTS)

    # And into a checkout on the host that holds the same uncommitted test.
    with (repository / TEST).open("a") as file:
        file.write(FAILING_TEST)
    laid = (repository / TEST).read_bytes()
    forkyard("apply", winner, "--to", str(repository))
    assert (repository / TEST).read_bytes() == laid
    assert changed(repository) == [f" M {SOURCE}", f" M {TEST}"]
    subprocess.run(["sh", "-c", TESTS], cwd=repository, check=True, capture_output=True)

    # A second time the bytes are no longer the recorded base's: refused, and nothing is touched.
    kept = (repository / SOURCE).read_bytes()
    forkyard("apply", winner, "--to", str(repository), code=4)
    assert (repository / SOURCE).read_bytes() == kept


def changed(repository: Path) -> list[str]:
    """Ask git what differs from the commit."""
    told = subprocess.run(
        ["git", "status", "--porcelain"],
        cwd=repository,
        env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},
        check=True,
        capture_output=True,
        text=True,
    )
    return told.stdout.splitlines()
