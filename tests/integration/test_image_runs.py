"""Runs in workspaces whose root is an image: attempts, their candidates, and who collects them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from forkyard import connect_blocking
from oci_images import tiny_root, write_layout
from projects import attempts, forkyard, git, run_result, write_task

TEMPLATE = """\
spec:
  image: {layout: {path: tiny}}
  repository: {path: repo, include_uncommitted: true}
  network: {build: none}
  runtime:
    tasks:
      - {name: tool, run: "echo installed > /usr/local/tool", runAsRoot: true}
"""


def make_repository(folder: Path) -> None:
    """Make a repository whose check needs nothing but a shell."""
    folder.mkdir()
    (folder / "adder.sh").write_text("echo $(($1 - $2))\n")
    git(folder, "init", "-q", "-b", "main")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "start")


@pytest.mark.usefixtures("home")
def test_a_run_is_solved_and_its_image_recorded_when_the_template_has_an_image(
    tmp_path: Path,
) -> None:
    """Agents work and checks judge in the image, though it has no git; `gc` lets it go at last."""
    make_repository(tmp_path / "repo")
    digest = write_layout(tmp_path / "tiny", [tiny_root()], variables={"PATH": "/bin"})
    (tmp_path / "t.yaml").write_text(TEMPLATE)
    with connect_blocking() as client:
        client.templates.apply(tmp_path / "t.yaml")
        client.templates.build("t", timeout_seconds=120)
    task = write_task(
        tmp_path,
        """\
        name: adder
        prompt: Make it add.
        start: {template: t}
        agents:
          - {name: good, driver: command, command: "sed -i 's/ - / + /' adder.sh"}
          - {name: idle, driver: command, command: "cat /usr/local/tool"}
        checks:
          - {name: adds, run: 'test "$(sh adder.sh 2 3)" = 5 && cat /usr/local/tool'}
        """,
    )
    result = run_result(forkyard("run", task, "--json", directory=tmp_path))
    good, idle = attempts(result)["good"], attempts(result)["idle"]
    assert good["evaluation"]["verdict"] == "solved"
    assert idle["evaluation"]["verdict"] != "solved"
    assert [one["path"] for one in good["candidate"]["files"]] == ["adder.sh"]
    with connect_blocking() as client:
        manifest = json.loads(client.candidates.manifest(good["candidate"]["id"]))
        assert manifest["environment"]["image_digest"] == digest
        assert b"".join(client.runs.log(idle["id"])) == b"installed\n"
        client.templates.delete("t")
    done = forkyard("gc", "--older-than", "1s", directory=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "image" in done.stdout
