"""Allowlists where people set them: in a task file, a template file, and on the command line."""

from __future__ import annotations

import json
from pathlib import Path

from forkyard.config import Layout
from origins import Origin, certificate
from own_internet import OwnInternet, own_internet
from projects import FIX, attempts, forkyard, git, make_repository, run_result, write_task

GOOD, OTHER = "good.example.org", "other.example.com"
FETCH = (
    "import ssl, sys, urllib.request as u\n"
    "for a in sys.argv[1:]:\n"
    "    try: print(u.urlopen(a, context=ssl._create_unverified_context()).read().decode())\n"
    "    except Exception as e: print(e)\n"
)
FETCH_BOTH = f"python3 fetch.py https://{GOOD}/ https://{OTHER}/"
TASK = f"""\
name: fetch
prompt: Fetch, then mend.
start: {{repository: {{path: repo}}}}
network: {{policy: allowlist, allow: [{GOOD}]}}
agents:
  - {{name: one, command: "{FETCH_BOTH}; {FIX}"}}
checks:
  - {{name: check, run: "python3 -B check.py && ! {FETCH_BOTH} | grep hello"}}
limits: {{baseline_repeats: 1}}
"""
TEMPLATE = """\
spec:
  image: host
  repository: {path: repo}
  network: {build: allowlist, workspace: allowlist, allow: [good.example.org]}
  runtime:
    tasks:
      - name: fetch
        type: ON_CREATE
        workingDir: /workspace/repo
        run: python3 fetch.py https://good.example.org/ https://other.example.com/ > fetched
"""


def _user(tmp_path: Path) -> None:
    repository = make_repository(tmp_path / "repo")
    (repository / "fetch.py").write_text(FETCH)

    git(repository, "add", ".")
    git(repository, "commit", "-qm", "fetch")


def _origins(internet: OwnInternet, folder: Path) -> tuple[Origin, Origin]:
    tls = certificate(folder, GOOD)
    return (
        Origin(internet.listen("11.22.33.44", 443), tls),
        Origin(internet.listen("11.22.33.55", 443), tls),
    )


def test_an_attempts_connections_are_in_its_manifest_when_its_task_has_an_allowlist(
    home: Path, tmp_path: Path
) -> None:
    """What was let in and what was not, in manifest and command; checks reach nothing."""
    _user(tmp_path)
    write_task(tmp_path, TASK)

    with own_internet({GOOD: "11.22.33.44", OTHER: "11.22.33.55"}) as internet:
        good, other = _origins(internet, tmp_path)
        done = internet.run_here(lambda: forkyard("run", "task.yaml", "--json", directory=tmp_path))
        result = run_result(done)
        one = attempts(result)["one"]
        shown = internet.run_here(
            lambda: forkyard("connections", one["id"], "--json", directory=tmp_path)
        )
        people = internet.run_here(lambda: forkyard("connections", one["id"], directory=tmp_path))
        good.close()
        other.close()

    assert one["evaluation"]["verdict"] == "solved", (done.stderr, result)
    path = Layout(home).attempt(result["id"], one["id"]) / "manifest.json"
    manifest = json.loads(path.read_text())
    listed = manifest["connections"]["listed"]
    assert [(each["host"], each["port"], each["outcome"]) for each in listed] == [
        (GOOD, 443, "closed"),
        (OTHER, 443, "refused"),
    ]
    assert manifest["isolation"]["network"] == "allowlist"
    assert manifest["isolation"]["allow"] == GOOD
    told = json.loads(shown.stdout)
    assert told["total"] == 2
    assert told["listed"][1]["reason"].startswith("it is not in the allowlist")
    assert f"{GOOD}:443" in people.stdout
    assert good.connections == 1, "the check must not have come through"
    assert other.connections == 0


def test_builds_and_workspaces_reach_what_the_template_allows_when_it_has_an_allowlist(
    home: Path, tmp_path: Path
) -> None:
    """The build's log tells what it connected to; workspaces get the list, and one more host."""
    _user(tmp_path)
    (tmp_path / "template.yaml").write_text(TEMPLATE)
    assert home.is_dir()

    with own_internet({GOOD: "11.22.33.44", OTHER: "11.22.33.55"}) as internet:
        good, other = _origins(internet, tmp_path)

        def story() -> list[str]:
            told = []
            for words in (
                ("template", "apply", "template.yaml", "--name", "t"),
                ("template", "build", "t"),
                ("workspace", "create", "--template", "t", "--name", "plain"),
                ("workspace", "exec", "plain", "--", "cat", "fetched"),
                ("workspace", "exec", "plain", "--", "sh", "-c", FETCH_BOTH),
                ("workspace", "create", "--template", "t", "--name", "more", "--allow", OTHER),
                ("workspace", "exec", "more", "--", "sh", "-c", FETCH_BOTH),
                ("connections", "more", "--json"),
                ("workspace", "create", "--template", "t", "--network", "none", "--name", "none"),
                ("workspace", "exec", "none", "--", "sh", "-c", f"{FETCH_BOTH}; env"),
            ):
                done = forkyard(*words, directory=tmp_path)
                assert done.returncode == 0, (words, done.stderr)
                told.append(done.stdout + done.stderr)
            return told

        told = internet.run_here(story)
        good.close()
        other.close()

    assert f"connection to {GOOD}:443 closed" in told[1]
    assert f"connection to {OTHER}:443 refused" in told[1]
    assert [text.count("hello") for text in (told[3], told[4], told[6])] == [1, 1, 2]
    assert "403" in told[4]
    assert json.loads(told[7].splitlines()[-1])["allow"] == [GOOD, OTHER]
    assert "hello" not in told[9]
    assert "PROXY" not in told[9]
