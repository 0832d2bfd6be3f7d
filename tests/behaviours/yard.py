"""One installation of Forkyard, driven by its command line as the user that it belongs to.

The behaviours say what every way to run it must do; a `Yard` is one way. It never looks behind
the command line, but for what is left on the machine.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PATIENCE_SECONDS = 300.0
GIT = ("git", "-c", "user.name=t", "-c", "user.email=t@t", "-c", "init.defaultBranch=main")
FILES = {
    "state": "broken\n",
    "tests/check.sh": "grep -q fixed state\n",
    "docs/guide": "read me\n",
    ".gitignore": "*.log\n",
}

Done = subprocess.CompletedProcess[str]
Runner = Callable[[Sequence[str], Path, Mapping[str, str]], Done]


def as_root(argv: Sequence[str], directory: Path, variables: Mapping[str, str]) -> Done:
    """Run a program as we are."""
    return subprocess.run(
        argv,
        cwd=directory,
        env={**os.environ, **variables},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )


@dataclass(slots=True, kw_only=True)
class Yard:
    """One state directory, and how its owner runs a program."""

    mode: str
    home: Path
    """FORKYARD_HOME."""
    folder: Path
    """Where its owner may write."""
    run: Runner
    python: str = sys.executable
    count: int = 0

    def program(self, *argv: str, directory: Path | None = None) -> Done:
        """Run any program as the owner; it must succeed."""
        done = self.run(argv, directory or self.folder, {"FORKYARD_HOME": str(self.home)})
        assert done.returncode == 0, done.stderr
        return done

    def forkyard(
        self, *arguments: str, code: int | None = 0, directory: Path | None = None
    ) -> Done:
        """Run the command line to its end and look at its exit status."""
        done = self.run(
            [self.python, "-m", "forkyard", *arguments],
            directory or self.folder,
            {"FORKYARD_HOME": str(self.home)},
        )
        assert code is None or done.returncode == code, f"{done.returncode}: {done.stderr}"
        return done

    def ask(self, *arguments: str, code: int | None = 0, directory: Path | None = None) -> Any:  # noqa: ANN401 - any JSON
        """Run the command line with --json and read its result."""
        done = self.forkyard(*arguments, "--json", code=code, directory=directory)
        return json.loads(done.stdout.strip().splitlines()[-1])

    def name(self, kind: str) -> str:
        """Give a name that nothing has yet."""
        self.count += 1
        return f"{kind}-{os.getpid()}-{self.count}"

    def repository(self, files: Mapping[str, str] = FILES) -> Path:
        """Make a repository of one commit that belongs to the owner."""
        folder = self.folder / self.name("repo")
        lines = ["set -e", f"mkdir {folder}", f"cd {folder}"]
        for path, text in files.items():
            lines += [f"mkdir -p $(dirname {path})", f"printf %s '{text}' > {path}"]
        git = " ".join(GIT)
        lines += [f"{git} init -q", f"{git} add -A", f"{git} commit -qm first"]
        self.program("sh", "-c", "\n".join(lines))
        return folder

    def template(self, text: str, *, code: int = 0) -> str:
        """Apply and build a template file; gives its name."""
        name = self.name("template")
        file = self.folder / f"{name}.yaml"
        self.program("sh", "-c", f"cat > {file} <<'EOF'\n{text}\nEOF")
        self.forkyard("template", "apply", str(file), "--name", name)
        self.forkyard("template", "build", name, code=code)
        return name

    def prepared(self) -> str:
        """Build a template of a small repository; gives its name."""
        path = self.repository()
        return self.template(
            f"spec:\n  repository: {{path: {path}, include_uncommitted: true}}\n"
            "  runtime:\n    envVars: [{key: LEVEL, value: high}]"
        )

    def workspace(self, *, snapshot: str = "", template: str = "") -> Box:
        """Fork a workspace."""
        origin = ("--snapshot", snapshot) if snapshot else ("--template", template)
        made = self.ask("workspace", "create", *origin, "--name", self.name("box"))
        return Box(yard=self, id=made["id"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a command in a workspace ended."""

    status: int | None
    reason: str
    out: str
    err: str
    detail: str | None
    truncated: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """One workspace of a yard."""

    yard: Yard
    id: str

    def sh(self, command: str, *options: str) -> Outcome:
        """Run a shell command in it."""
        answer = self.yard.ask(
            "workspace", "exec", *options, "--json", self.id, "sh", "-c", command, code=None
        )
        return Outcome(
            status=answer["exit_code"],
            reason=answer["stop_reason"],
            out=answer["stdout"],
            err=answer["stderr"],
            detail=answer["detail"],
            truncated=answer["truncated"],
        )

    def read(self, command: str, *options: str) -> str:
        """Give what a command that must succeed prints."""
        done = self.sh(command, *options)
        assert (done.status, done.reason) == (0, "exited"), done
        return done.out.rstrip("\n")

    def state(self) -> str:
        """Give the workspace's state."""
        return str(self.yard.ask("workspace", "show", self.id)["state"])

    def stop(self) -> None:
        """Stop it."""
        self.yard.forkyard("workspace", "stop", self.id)

    def delete(self) -> None:
        """Delete it."""
        self.yard.forkyard("workspace", "delete", self.id)
