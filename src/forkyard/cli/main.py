"""The door of the command line: which commands there are, and how errors leave.

Nothing here imports more than click and the standard library: help, version and completion stay
fast, and each command's own module is imported when it is run.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import sys
from collections.abc import Mapping
from importlib import import_module
from typing import NoReturn

import click
from click.shell_completion import CompletionItem

from forkyard import __version__
from forkyard.errors import ConfigError, ForkyardError, InternalError, UserError

EXIT_CODES = """\b
Exit codes:
  0    done (run: a candidate is `solved` in every task)
  1    finished, none good enough
  2    bad usage or configuration
  3    not found
  4    conflict or wrong state
  5    denied
  10   workspace or sandbox
  11   agent
  12   gateway or provider
  13   budget exhausted
  14   evaluation could not run
  15   state store
  70   our bug
  130  interrupted
"""

INTERRUPTED = 130

_CANNOT_WRITE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF})


class LazyGroup(click.Group):
    """A group that knows its commands' names and one-line helps, and imports what is run."""

    def __init__(
        self, *arguments: object, rows: Mapping[str, tuple[str, str]], **options: object
    ) -> None:
        """Take the rows: name -> (``module:attribute``, one-line help)."""
        super().__init__(*arguments, **options)  # type: ignore[arg-type]
        self._rows = rows

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """List the names in the table's order."""
        return list(self._rows)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click's signature
        """Import one command."""
        if cmd_name not in self._rows:
            return None
        module, _, attribute = self._rows[cmd_name][0].partition(":")
        command = getattr(import_module(module), attribute)
        return command if isinstance(command, click.Command) else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's signature
        """Write the commands from the table, importing none."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, row[1]) for name, row in self._rows.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete names and options from the table, importing no command."""
        names = [
            CompletionItem(name, help=row[1])
            for name, row in self._rows.items()
            if name.startswith(incomplete)
        ]
        # Past the group of commands: only options are left to complete.
        return names + click.Command.shell_complete(self, ctx, incomplete)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Suggest the nearest name for one that does not exist."""
        if args and args[0] not in self._rows and not args[0].startswith("-"):
            from difflib import get_close_matches  # noqa: PLC0415 - only on a mistake

            near = get_close_matches(args[0], list(self._rows), 1)
            ctx.fail(
                f"no such command {args[0]!r}" + (f", did you mean {near[0]!r}?" if near else "")
            )
        return super().resolve_command(ctx, args)


_ROWS = {
    "demo": ("forkyard.cli.demo_command:demo", "Best of 3 on a bundled example, offline."),
    "run": ("forkyard.cli.run:run", "Run agents on a task and rank what they did."),
    "status": ("forkyard.cli.run:status", "List runs, or show one."),
    "watch": ("forkyard.cli.run:watch", "Follow a run to its end."),
    "logs": ("forkyard.cli.review:logs", "Show what an agent printed."),
    "cancel": ("forkyard.cli.run:cancel", "End a run, keeping what was found."),
    "retry": ("forkyard.cli.run:retry", "Start again what trouble of ours ended."),
    "regrade": ("forkyard.cli.run:regrade", "Evaluate a run's candidates again."),
    "compare": ("forkyard.cli.review:compare", "Compare a run's candidates, with reasons."),
    "diff": ("forkyard.cli.review:diff", "Show a candidate's patch."),
    "apply": ("forkyard.cli.review:apply", "Put a candidate into a working tree."),
    "undo": ("forkyard.cli.undo:undo", "Take an applied candidate back."),
    "template": ("forkyard.cli.template:template", "Recipes that build snapshots."),
    "snapshot": ("forkyard.cli.snapshot:snapshot", "Immutable states to fork from."),
    "workspace": ("forkyard.cli.workspace:workspace", "Isolated copies to work in."),
    "agent": ("forkyard.cli.agent:agent", "Which agents can be run."),
    "secret": ("forkyard.cli.secret:secret", "Keys by name; no attempt holds one."),
    "doctor": ("forkyard.cli.serve:doctor", "Say what isolation this machine gives."),
    "serve": ("forkyard.cli.serve:serve", "Run the server in the foreground."),
    "connections": (
        "forkyard.cli.connections:connections",
        "Show what an allowlist let in, and what not.",
    ),
    "usage": ("forkyard.cli.usage:usage", "Show what agents spent on their models."),
    "gc": ("forkyard.cli.serve:gc", "Remove what nothing needs any more."),
}


@click.command(
    cls=LazyGroup,
    rows=_ROWS,
    epilog=EXIT_CODES,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, "-V", "--version", prog_name="forkyard")
def root() -> None:
    """Fork a workspace, run coding agents side by side, judge them, apply what you choose.

    \b
    Start with:    forkyard demo
    The main job:  forkyard run TASK.yaml
    """  # noqa: D301 - click's mark for lines to keep as they are


def main() -> NoReturn:
    """Run the command line and exit with a documented code."""
    _open_closed_streams()
    try:
        code = root.main(prog_name="forkyard", standalone_mode=False)
    except click.exceptions.Abort:
        click.echo("Interrupted.", err=True)
        leave(INTERRUPTED)
    except click.ClickException as error:
        error.show()
        if _wants_json():
            _write_json(UserError(error.format_message()))
        leave(error.exit_code)
    except KeyboardInterrupt:
        click.echo("Interrupted.", err=True)
        leave(INTERRUPTED)
    except BrokenPipeError:
        # The reader of our output went away (`| head`): nothing to say and nobody to say it to.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        leave(1)
    except ForkyardError as error:
        tell(error)
        leave(error.exit_code)
    except OSError as error:
        known = _of_the_system(error)
        if known is None:
            _tell_bug(error)
        click.echo(f"Error: {known}", err=True)
        leave(1)
    except Exception as error:  # noqa: BLE001 - the outermost boundary
        _tell_bug(error)
    leave(code if isinstance(code, int) else 0)


def _open_closed_streams() -> None:
    # Whoever starts us with a closed stream would otherwise get our next file or socket in its
    # place, written to as if it were the terminal.
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
            setattr(sys, name, open(number, "r" if number == 0 else "w", closefd=False))  # noqa: SIM115 - it stays open as the standard stream


def _of_the_system(error: OSError) -> str | None:
    """Say what is wrong where it is neither our bug nor the server's matter."""
    try:
        os.getcwd()  # noqa: PTH109 - light
    except OSError:
        return "cannot go on: the current folder is gone; go into one that is there"
    if error.errno in _CANNOT_WRITE:
        return (
            f"cannot write the output: {error.strerror}; what was done is kept, see `forkyard"
            " status`"
        )
    return None


def _tell_bug(error: Exception) -> NoReturn:
    import traceback  # noqa: PLC0415 - only on a bug

    traceback.print_exc()
    bug = InternalError(
        f"cannot go on: {type(error).__name__}: {error}",
        hint="Report it with the lines above.",
    )
    tell(bug)
    leave(bug.exit_code)


def tell(error: ForkyardError) -> None:
    """Write an error for people to stderr, and for programs to stdout where JSON was asked for."""
    from forkyard.cli.output import clean  # noqa: PLC0415 - not needed for help

    problems = error.problems if isinstance(error, ConfigError) else ()
    if _wants_json():
        _write_json(error)
    click.echo(f"Error: {clean(error.message)}", err=True)
    for problem in problems:
        if len(problems) == 1 and str(problem) in error.message:
            break  # told already
        click.echo(f"  {clean(str(problem))}", err=True)
    if error.hint:
        click.echo(f"Hint: {clean(error.hint)}", err=True)


def _wants_json() -> bool:
    words = sys.argv[1:]
    return "--json" in (words[: words.index("--")] if "--" in words else words)


def _write_json(error: ForkyardError) -> None:
    problems = error.problems if isinstance(error, ConfigError) else ()
    body: dict[str, object] = {
        "code": error.code,
        "message": error.message,
        "hint": error.hint,
        "problems": [
            {"message": one.message, "file": one.file, "line": one.line, "key": one.key}
            for one in problems
        ],
    }
    with contextlib.suppress(OSError):  # stderr tells it as well
        click.echo(json.dumps({"error": body}))


def leave(code: int) -> NoReturn:
    """Exit at once after flushing; unused background threads need no farewell."""
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except (OSError, ValueError):
        os._exit(code or 1)
    sys.exit(code)
