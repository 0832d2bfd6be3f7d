"""The first seed's Template and its whole sequence of commands, with ours.

Its YAML is taken out of its document byte for byte. Hosts that a test must not reach are stood in
for under their real names (`stand_ins/hosts.py` lists them, and this test prints the list): neither
the YAML nor the product knows of it. The machine that the server runs on trusts a test authority
as an administrator would have it do, and so does the image.
"""

from __future__ import annotations

import base64
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from canary import Canary, Detector, new_canary
from model_yard import MEND, SECRET, TABLE_PRICES
from scripted_model.running import ScriptedModel, start_model
from scripted_model.shapes import Object, an_object
from seed_document import agents, prompt, template
from stand_ins import hosts, payments
from stand_ins.internet import StandInternet, stand_internet

pytestmark = pytest.mark.deep
NAME = "agents.payments.cordium"
TOKEN_NAME = "github-read-token.payments.cordium"  # noqa: S105 - its name, as the seed's YAML has it
EXAMPLE = Path(__file__).parents[2] / "examples" / "parallel_agents.py"
TEST = (payments.FILES / "developers_test.go.txt").read_text()
PACKAGE = "./internal/webhooks/"
FILE = "internal/webhooks/retry.go"
SOLVED = {
    "-\treturn time.Now().Add(retry.Delay(attempts))",
    "+\treturn retry.clock.Now().Add(retry.Delay(attempts))",
}


def scenario() -> Object:
    """Say what the model does: look, mend, test, tell."""
    text = json.dumps(MEND)
    for old, new in (
        ("adder.py", FILE),
        ("    return a - b", r"\treturn time.Now().Add(retry.Delay(attempts))"),
        ("    return a + b", r"\treturn retry.clock.Now().Add(retry.Delay(attempts))"),
        ("python3 -B check.py", "go test ./..."),
        ("Fixed add()", "Fixed Next()"),
    ):
        assert old in text
        text = text.replace(old, new)
    return an_object(json.loads(text))


@dataclass(frozen=True, slots=True, kw_only=True)
class Desk:
    """A developer's machine on the internet of the stand-ins."""

    internet: StandInternet
    folder: Path
    home: Path
    model: ScriptedModel
    token: Canary
    key: Canary

    def forkyard(self, *words: str, text: str | None = None, code: int = 0) -> str:
        """Run a command to its end; give what it printed."""
        return self.run(("-m", "forkyard", *words), text=text, code=code)

    def run(self, words: Sequence[str], *, text: str | None = None, code: int = 0) -> str:
        """Run a Python program on that machine."""
        done = subprocess.run(
            [
                *self.internet.net.here(),
                *("env", f"--chdir={self.folder}"),
                *(sys.executable, *words),
            ],
            env=dict(os.environ),
            input=text or "",
            check=False,
            capture_output=True,
            text=True,
            timeout=900,
        )
        said = done.stdout + done.stderr
        assert done.returncode == code, f"{words}: {done.returncode}: {said}\n{self._logs()}"
        return said

    def inside(self, workspace: str, command: str, *, code: int = 0, text: str = "") -> str:
        """Run a shell command in a workspace's repository."""
        return self.forkyard(
            *("workspace", "exec", "--stdin", workspace, "--", "sh", "-c", command),
            text=text,
            code=code,
        )

    def _logs(self) -> str:
        logs = (self.home / "server.log", *self.home.glob("builds/*/*"))
        return "\n".join(one.read_text(errors="replace")[-6000:] for one in logs if one.is_file())


@pytest.fixture
def desk(home: Path, tmp_path: Path) -> Iterator[Desk]:
    """Give that machine, with a model at the gateway and nothing else set up."""
    token, key = Canary(new_canary().random, prefix="ghs_"), new_canary()
    (tmp_path / "internet").mkdir()
    with (
        stand_internet(tmp_path / "internet", token.value) as internet,
        start_model(tmp_path, scenario(), within=internet.net.here()) as model,
    ):
        work = tmp_path / "work"
        work.mkdir()
        (home / "gateway.yaml").write_text(TABLE_PRICES.format(url=model.url))
        yield Desk(internet=internet, folder=work, home=home, model=model, token=token, key=key)


@pytest.mark.timeout(1200)
def test_the_seeds_template_and_commands_do_what_its_document_says(desk: Desk) -> None:
    """From the YAML to the chosen patch; no credential is anywhere but where it belongs."""
    print(f"stood in for:\n{hosts.listing()}")  # noqa: T201 - what a reader of the result asks
    _the_template_is_applied_and_built(desk)
    _the_developer_reproduces_the_bug_and_takes_a_snapshot(desk)
    _the_agents_mend_it_side_by_side(desk)
    _the_best_patch_is_applied(desk)
    _only_the_listed_hosts_were_asked(desk)
    _no_credential_is_left_anywhere(desk)


def _the_template_is_applied_and_built(desk: Desk) -> None:
    (desk.folder / "agents.yaml").write_bytes(template())
    desk.forkyard("secret", "set", TOKEN_NAME, text=desk.token.value)
    desk.forkyard("secret", "set", SECRET, text=desk.key.value)
    said = desk.forkyard("template", "apply", "agents.yaml", "--name", NAME)
    built = desk.forkyard("template", "build", NAME)
    if (os.cpu_count() or 1) < 4:
        assert "limit.cpu is 4 cores and this machine has" in built, said + built


def _the_developer_reproduces_the_bug_and_takes_a_snapshot(desk: Desk) -> None:
    desk.forkyard("workspace", "create", "--template", NAME, "--name", "mine")
    installed = desk.inside("mine", "go version && $HOME/.local/bin/claude --version")
    assert "go1." in installed
    assert "Claude Code" in installed
    # agents run commands in login shells
    assert "/usr/local/go/bin/go" in desk.inside("mine", "sh -lc 'command -v go'")
    desk.inside("mine", "git checkout -b fix/1842 origin/main")
    desk.inside("mine", f"{{ echo; cat; }} >> {PACKAGE}retry_test.go", text=TEST)
    failed = desk.inside("mine", f"go test {PACKAGE} -run TestWebhookRetryUsesClock", code=1)
    assert "--- FAIL: TestWebhookRetryUsesClock (0.00s)" in failed
    assert re.search(
        r"\n    retry_test\.go:88: backoff computed from the wall clock: got 20\d\d-\S+Z\nFAIL",
        failed,
    )
    desk.forkyard("workspace", "stop", "mine")
    desk.forkyard("snapshot", "create", "issue-1842", "--workspace", "mine")


def _the_agents_mend_it_side_by_side(desk: Desk) -> None:
    words = [f"--agent={name}={command}" for name, command in agents().items()]
    printed = desk.run(
        [
            *(str(EXAMPLE), "issue-1842", "--prompt", prompt(), *words),
            *("--tests", "go test ./...", "--network", "gateway"),
        ]
    )
    lines = printed.splitlines()
    assert [line.split()[0] for line in lines] == ["claude-opus", "claude-sonnet", "codex"]
    for line in lines:
        assert re.search(r"agent exit 0 in \d+s, tests passed: yes, patch: [1-9]\d* bytes", line)
    for name in agents():
        patch = (desk.folder / f"{name}.patch").read_text()
        assert set(patch.splitlines()) >= SOLVED, patch
        assert "retry_test.go" not in patch
    assert len(desk.forkyard("workspace", "list").splitlines()) == 2  # the head, and `mine`
    usage = desk.forkyard("usage", "--by", "attempt")
    for name in agents():
        assert f"issue-1842: {name}" in usage
    assert {bill.status for bill in desk.model.billed()} == {200}


def _the_best_patch_is_applied(desk: Desk) -> None:
    patch = (desk.folder / "claude-sonnet.patch").read_text()
    desk.inside("mine", "git apply", text=patch)
    assert "ok  \tgithub.com/acme-corp/payments-api" in desk.inside("mine", "go test ./...")
    # `mine` stands on it since it was taken: that is said, and not cut from under it
    refused = desk.forkyard("snapshot", "delete", "issue-1842", code=4)
    assert "stands on it" in refused
    desk.forkyard("workspace", "delete", "mine")
    desk.forkyard("snapshot", "delete", "issue-1842")


def _only_the_listed_hosts_were_asked(desk: Desk) -> None:
    known = {one.name for one in hosts.HOSTS}
    asked = set(desk.internet.net.asked)
    assert known <= asked
    # apt looks for another server of a mirror, by a service record
    others = {name for name in asked - known if not name.startswith("_http._tcp.")}
    assert others == set()


def _no_credential_is_left_anywhere(desk: Desk) -> None:
    for one in (desk.token, desk.key):
        # whole, and as a header or an address would carry it
        words = [one.random, *_coded(one.random)]
        patterns = [word for text in words for word in ("-e", text)]
        found = subprocess.run(
            ["grep", "-rlaF", *patterns, str(desk.home)],
            check=False,
            capture_output=True,
            text=True,
        )
        assert found.stdout == ""
        assert Detector(one).in_processes() == []


def _coded(text: str) -> list[str]:
    """Give what base64 makes of a text, wherever it begins in what is coded."""
    return [
        base64.b64encode(bytes(before) + text.encode()).decode()[(0, 2, 3)[before] : -4]
        for before in range(3)
    ]
