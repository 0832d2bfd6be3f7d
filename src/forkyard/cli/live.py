"""Commands of a person at a terminal: run something in a workspace, be in it."""

from __future__ import annotations

import asyncio
import base64
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING

import click

from forkyard.cli.calls import json_option, talk
from forkyard.cli.completion import complete
from forkyard.cli.output import Out, progress
from forkyard.cli.output import as_json as write_json
from forkyard.errors import ConfigError, Problem, WorkspaceError
from forkyard.wire.units import parse_duration

if TYPE_CHECKING:
    from forkyard.client.client import Client
    from forkyard.client.live import LiveExec
    from forkyard.client.results import ExecOutcome

TIMED_OUT = 124
NOT_STARTED = 127
LOGIN_SHELL = (
    "/bin/sh",
    "-c",
    "if command -v bash >/dev/null 2>&1; then exec bash -l; else exec sh -l; fi",
)


class _CommandLast(click.Command):
    """Options may stand before and after the workspace; past them everything is the command's."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Take the workspace out of the way while options are read."""
        found = self.make_parser(ctx).parse_args(list(args))[0].get("argv")
        words = list(found) if isinstance(found, tuple | list) else []
        before = args[: len(args) - len(words)]
        if not words or before[-1:] == ["--"]:
            return super().parse_args(ctx, args)
        rest = super().parse_args(ctx, [*before, *words[1:]])
        ctx.params["argv"] = (words[0], *ctx.params.get("argv", ()))
        return rest


@click.command(
    "exec",
    cls=_CommandLast,
    context_settings={"allow_interspersed_args": False},
    epilog="\b\nExamples:\n  forkyard workspace exec ws_77aa pytest -q\n"
    "  forkyard workspace exec ws_77aa --timeout 10m -c 'make && make test'",
)
@click.argument(
    "argv", nargs=-1, type=click.UNPROCESSED, metavar="W [COMMAND...]", shell_complete=complete
)
@click.option("-c", "--command", help="A shell command instead of a program with arguments.")
@click.option("-w", "--directory", metavar="FOLDER", help="Default: the repository.")
@click.option("-e", "--env", "variables", multiple=True, metavar="NAME=VALUE", help="Repeatable.")
@click.option("-i", "--stdin", "has_input", is_flag=True, help="Pass our standard input in.")
@click.option("--root", "as_root", is_flag=True, help="As root of the workspace.")
@click.option("--timeout", metavar="DURATION", help="Such as 45m.")
@json_option
def exec_(
    argv: tuple[str, ...],
    command: str | None,
    directory: str | None,
    variables: tuple[str, ...],
    timeout: str | None,
    *,
    has_input: bool,
    as_root: bool,
    as_json: bool,
) -> int:
    """Run one command in a workspace. Exits with its status (124: it ran out of time)."""
    workspace_id, words = _words(argv)
    if (command is None) == (not words):
        raise click.UsageError("give either a command with its arguments, or -c")
    given: str | list[str] = command if command is not None else words
    environment = _variables(variables)
    limit = duration(timeout, "--timeout")

    async def conversation(client: Client) -> ExecOutcome:
        from forkyard.cli.terminal import read_stream  # noqa: PLC0415 - heavy: not for help

        found = await client.workspaces.get(workspace_id)
        if as_json:
            return await found.exec(
                given,
                working_directory=directory,
                variables=environment,
                timeout_seconds=limit,
                input=read_stream(0) if has_input else None,
                as_root=as_root,
            )
        return await _shown(
            found.attach(
                given,
                working_directory=directory,
                variables=environment,
                timeout_seconds=limit,
                has_input=has_input,
                as_root=as_root,
            ),
            read_stream(0) if has_input else None,
        )

    outcome = talk(conversation)
    if as_json:
        write_json(_plain(outcome))
    return _status(outcome)


def _words(argv: tuple[str, ...]) -> tuple[str, list[str]]:
    if not argv:
        raise click.UsageError("name a workspace")
    workspace_id, *words = argv
    return workspace_id, words[1:] if words and words[0] == "--" else words


async def _shown(
    attaching: AbstractAsyncContextManager[LiveExec],
    source: AsyncIterator[bytes] | None,
) -> ExecOutcome:
    """Write a command's output as it comes; an interrupt ends the command."""
    targets = {"stdout": Out(sys.stdout.buffer), "stderr": Out(sys.stderr.buffer)}
    async with attaching as one:
        try:
            async with asyncio.TaskGroup() as group:
                feeding = group.create_task(one.feed(source)) if source is not None else None
                async for stream, chunk in one.output():
                    await targets[stream].write(chunk)
                if feeding is not None:
                    feeding.cancel()
        except asyncio.CancelledError:
            await asyncio.shield(one.kill())
            raise
        except BaseExceptionGroup as group_error:
            raise group_error.exceptions[0] from None
        finally:
            for target in targets.values():
                target.finish()
        return await one.outcome()


@click.command(
    cls=_CommandLast,
    context_settings={"allow_interspersed_args": False},
    epilog="\b\nExamples:\n  forkyard workspace shell mine\n"
    "  forkyard workspace shell mine -- htop\n"
    "  forkyard workspace shell mine --attach exec_12ab    # one that was left",
)
@click.argument(
    "argv", nargs=-1, type=click.UNPROCESSED, metavar="W [COMMAND...]", shell_complete=complete
)
@click.option("-w", "--directory", metavar="FOLDER", help="Default: the repository.")
@click.option("-e", "--env", "variables", multiple=True, metavar="NAME=VALUE", help="Repeatable.")
@click.option("--root", "as_root", is_flag=True, help="As root of the workspace.")
@click.option("--attach", "exec_id", metavar="EXEC", help="One that is running already.")
@json_option
def shell(
    argv: tuple[str, ...],
    directory: str | None,
    variables: tuple[str, ...],
    exec_id: str | None,
    *,
    as_root: bool,
    as_json: bool,
) -> int:
    """Be in a workspace with a terminal of its own. Enter ~ . leaves and lets it run on."""
    from forkyard.cli import terminal  # noqa: PLC0415 - heavy: not for help

    workspace_id, words = _words(argv)
    descriptor = terminal.input_descriptor()
    environment = {"TERM": os.environ.get("TERM") or "xterm", **_variables(variables)}
    for name in ("COLORTERM", "LANG"):
        if name in os.environ:
            environment.setdefault(name, os.environ[name])

    async def conversation(client: Client) -> ExecOutcome:
        found = await client.workspaces.get(workspace_id)
        attaching = found.attach(
            "" if exec_id is not None else words or list(LOGIN_SHELL),
            exec_id=exec_id,
            working_directory=directory,
            variables=environment,
            as_root=as_root,
            terminal=None if descriptor is None else terminal.size_of(descriptor),
        )
        if descriptor is None:
            return await _shown(attaching, terminal.read_stream(0))
        async with attaching as one:
            with terminal.raw(descriptor):
                await one.resize(*terminal.size_of(descriptor))
                try:
                    await terminal.lend(one, descriptor, sys.stdout.buffer)
                except terminal.DetachedError:
                    left.append(one.id)
                    raise
            return await one.outcome()

    left: list[str] = []
    try:
        outcome = talk(conversation)
    except terminal.DetachedError:
        if as_json:
            write_json({"id": left[0], "state": "running"})
        progress(
            f"Left; come back with `forkyard workspace shell {workspace_id} --attach {left[0]}`."
        )
        return 0
    except terminal.HungUpError:
        return 128 + signal.SIGHUP
    if as_json:
        write_json(_plain(outcome))
    return _status(outcome)


def _plain(outcome: ExecOutcome) -> dict[str, object]:
    return {
        "id": outcome.id,
        "stop_reason": outcome.stop_reason,
        "exit_code": outcome.exit_code,
        "elapsed_seconds": outcome.elapsed_seconds,
        "stdout": outcome.stdout.decode("utf-8", "backslashreplace"),
        "stderr": outcome.stderr.decode("utf-8", "backslashreplace"),
        "stdout_base64": base64.b64encode(outcome.stdout).decode(),
        "stderr_base64": base64.b64encode(outcome.stderr).decode(),
        "truncated": outcome.truncated,
        "detail": outcome.detail,
    }


def _status(outcome: ExecOutcome) -> int:
    if outcome.truncated:
        progress("Output past the workspace's limit was dropped.")
    if outcome.stop_reason == "exited":
        if outcome.detail:
            progress(f"{outcome.detail[:1].upper()}{outcome.detail[1:]}.")
        return outcome.exit_code or 0
    progress(
        f"Not finished: {outcome.stop_reason}" + (f", {outcome.detail}" * bool(outcome.detail))
    )
    match outcome.stop_reason:
        case "timed-out":
            return TIMED_OUT
        case "could-not-start":
            return NOT_STARTED
        case "interrupted":
            return WorkspaceError.exit_code
        case _:
            return outcome.exit_code or 1


def _variables(entries: tuple[str, ...]) -> dict[str, str]:
    wrong = [one for one in entries if "=" not in one or one.startswith("=")]
    if wrong:
        raise ConfigError(
            f"cannot read -e {wrong[0]!r}: it is not NAME=VALUE",
            problems=tuple(
                Problem(key="-e", message=f"{one!r} is not NAME=VALUE") for one in wrong
            ),
        )
    return dict(one.split("=", 1) for one in entries)


def duration(text: str | None, option: str) -> float | None:
    """Read a time span such as 45m; ConfigError names the option."""
    if text is None:
        return None
    try:
        return parse_duration(text)
    except ValueError as error:
        raise ConfigError(
            f"cannot read {option}: {error}",
            problems=(Problem(key=option, message=str(error)),),
        ) from error
