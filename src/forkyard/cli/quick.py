"""The quick form on the command line: its flags as one request, every problem of them at once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import click
from click.core import ParameterSource

from forkyard.cli.output import progress
from forkyard.cli.tree import is_bare, root_of
from forkyard.cli.variables import read_vars
from forkyard.client.look import look_at
from forkyard.errors import ConfigError, Problem
from forkyard.wire.quickform import quick_request
from forkyard.wire.results import QuickRequest
from forkyard.wire.taskfile import MOST_ATTEMPTS
from forkyard.wire.units import parse_count, parse_duration, parse_usd

T = TypeVar("T")

_MOST_SHOWN = 60
_TASK_FILES = (".yaml", ".yml")
_FLAGS = {
    "attempts": "-n",
    "checks": "--check",
    "no_check": "--no-check",
    "setup": "--setup",
    "no_setup": "--no-setup",
    "repository": "--repository",
    "committed": "--committed",
    "snapshot": "--snapshot",
    "template": "--template",
    "values": "--var",
    "protected": "--protected",
    "allow": "--allow",
    "parallel": "--parallel",
    "timeout": "--timeout",
    "deadline": "--deadline",
    "budget_usd": "--budget-usd",
    "budget_tokens": "--budget-tokens",
}


def refuse_unless_task_file(context: click.Context, text: str) -> None:
    """Refuse what is no task file, and flags that have no meaning beside one.

    Raises:
        ConfigError: Nothing that is given is ignored.
    """
    if not text.endswith(_TASK_FILES) and not _is_file(text):
        raise ConfigError(
            f"cannot run {_shown(text)}: no such task file, and the quick form needs an agent",
            hint="Name a TASK.yaml, or add -a claude-code or -a NAME='SHELL COMMAND'.",
            problems=(Problem(key="-a", message="is missing"),),
        )
    typed = [
        flag
        for name, flag in _FLAGS.items()
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE
    ]
    if typed:
        raise ConfigError(
            f"cannot run {text} with {', '.join(typed)}: that belongs to the quick form",
            hint="Say it in the task file.",
        )


def read_quick(prompt: str, options: dict[str, object]) -> QuickRequest:
    """Make the request, and say where it starts.

    Args:
        prompt: What the agents are asked.
        options: The command's options by name.

    Raises:
        ConfigError: With every problem of the flags.
    """
    asked = _Asked(prompt, options)
    if asked.problems:
        shown = (
            str(asked.problems[0])
            if len(asked.problems) == 1
            else f"{len(asked.problems)} problems"
        )
        raise ConfigError(
            f"cannot run this: {shown}",
            hint="See `forkyard run --help`.",
            problems=tuple(asked.problems),
        )
    checks, setup = asked.texts("checks"), asked.texts("setup")
    if asked.starts_from_repository:
        found = _Proposal(asked.repository, committed=not asked.includes_uncommitted)
        checks = checks or ([] if options["no_check"] else found.checks())
        setup = setup or ([] if options["no_setup"] else found.setup())
    request = QuickRequest(
        prompt=prompt,
        agents=asked.texts("agents"),
        cwd=str(Path.cwd()),
        attempts=asked.number("attempts") or 1,
        checks=checks,
        setup=setup,
        repository=asked.repository,
        include_uncommitted=asked.includes_uncommitted,
        snapshot=asked.text("snapshot"),
        template=asked.text("template"),
        vars=asked.values,
        protected=asked.texts("protected"),
        allow=asked.texts("allow"),
        parallel=asked.number("parallel"),
        attempt_timeout_seconds=asked.timeout,
        deadline_seconds=asked.deadline,
        budget_tokens=asked.budget_tokens,
        budget_micro_usd=asked.budget_micro_usd,
    )
    if asked.starts_from_repository and request.include_uncommitted:
        progress("Starting from the repository as it lies, uncommitted work included.")
    return request


class _Asked:
    """The flags as values, and what is wrong with them."""

    def __init__(self, prompt: str, options: dict[str, object]) -> None:
        self._options = options
        self.problems: list[Problem] = []
        if prompt.endswith(_TASK_FILES) and _is_file(prompt):
            self._report("-a", f"has no meaning with task file {prompt}")
        self.timeout, self.deadline = self._duration("timeout"), self._duration("deadline")
        self.budget_tokens = self._parsed("budget_tokens", parse_count)
        self.budget_micro_usd = self._parsed("budget_usd", parse_usd)
        self.values: dict[str, str] = {}
        try:
            self.values = read_vars(self.texts("values"))
        except ConfigError as error:
            self.problems += error.problems
        parallel = self.number("parallel")
        if parallel is not None and not 1 <= parallel <= MOST_ATTEMPTS:
            self._report("--parallel", f"is {parallel}, must be from 1 to {MOST_ATTEMPTS}")
        for given, refused in (("checks", "no_check"), ("setup", "no_setup")):
            if options[refused] and self.texts(given):
                self._report(_FLAGS[refused], f"excludes {_FLAGS[given]}; give one of them")
        self.starts_from_repository = not self.text("snapshot") and not self.text("template")
        self.includes_uncommitted = not options["committed"]
        self.repository = self._repository()
        attempts = self.number("attempts")
        try:
            quick_request(
                prompt,
                agents=self.texts("agents"),
                cwd=str(Path.cwd()),
                attempts=1 if attempts is None else attempts,
                checks=self.texts("checks"),
                setup=self.texts("setup"),
                repository_path=self.repository,
                snapshot=self.text("snapshot"),
                template=self.text("template"),
                values=self.values,
                protected=self.texts("protected"),
                allow=self.texts("allow"),
            )
        except ConfigError as error:
            self.problems += error.problems

    def text(self, name: str) -> str | None:
        value = self._options[name]
        return value if isinstance(value, str) else None

    def texts(self, name: str) -> list[str]:
        value = self._options[name]
        return [str(one) for one in value] if isinstance(value, tuple) else []

    def number(self, name: str) -> int | None:
        value = self._options[name]
        return value if isinstance(value, int) else None

    def _report(self, flag: str, message: str) -> None:
        self.problems.append(Problem(key=flag, message=message))

    def _duration(self, name: str) -> float | None:
        return self._parsed(name, parse_duration)

    def _parsed(self, name: str, parse: Callable[[str], T]) -> T | None:
        text = self.text(name)
        if text is None:
            return None
        try:
            return parse(text)
        except ValueError as error:
            self._report(_FLAGS[name], str(error))
            return None

    def _repository(self) -> str:
        """Find the repository around the current folder, unless a folder is named."""
        named = self.text("repository")
        if named is not None or not self.starts_from_repository:
            return named or "."
        found = root_of(Path())
        if found is None:
            what = (
                "is a bare repository, without files; clone it, and go into the clone"
                if is_bare(Path())
                else "lies in no git repository; go into one, or name a folder"
            )
            self._report("--repository", f"{Path.cwd()} {what}")
        return str(found or ".")


class _Proposal:
    """What the repository's own files say, where the command line says nothing."""

    def __init__(self, repository: str, *, committed: bool) -> None:
        self._found = look_at(Path(repository), committed=committed)

    def checks(self) -> list[str]:
        best = next((one for one in self._found if one.test), None)
        if best is None or best.test is None:
            progress("No --check, and no test command found: candidates will not be judged.")
            return []
        progress(
            f"No --check: judging by `{best.test}` ({best.language}, from {best.evidence});"
            " --check chooses another, --no-check none."
        )
        return [best.test]

    def setup(self) -> list[str]:
        # One language: what else lies there is as likely a tool's as the product's.
        best = next(iter(self._found), None)
        if best is None or best.setup is None:
            return []
        progress(
            f"Preparing the copy with `{best.setup}` ({best.package_manager}, from"
            f" {best.evidence}), the network open; --setup chooses another, --no-setup none."
        )
        return [best.setup]


def _shown(text: str) -> str:
    return repr(text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}...")


def _is_file(text: str) -> bool:
    try:
        return "\n" not in text and Path(text).is_file()
    except OSError:  # longer than a file's name can be
        return False
