"""Commands about secrets. A value is never an argument: the process list shows arguments to all."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from forkyard.cli.calls import json_option, talk
from forkyard.cli.output import as_json as write_json
from forkyard.cli.output import clean, progress, say, table
from forkyard.errors import ConfigError, NotFoundError
from forkyard.model.secret import MOST_BYTES, NAME_RULE, is_secret_name


@click.group()
def secret() -> None:
    """Keys by name: for models, images, repositories and tasks. No attempt ever holds one."""


@secret.command(
    "set",
    epilog="\b\nExamples:\n"
    "  forkyard secret set ANTHROPIC_API_KEY                  asks, without showing it\n"
    "  pass show anthropic | forkyard secret set ANTHROPIC_API_KEY\n"
    "  forkyard secret set OPENAI_API_KEY --from-env OPENAI_API_KEY\n"
    "  forkyard secret set DEPLOY_KEY --from-file ~/.ssh/deploy",
)
@click.argument("name")
@click.argument("surplus", nargs=-1, metavar="")
@click.option("--from-file", metavar="FILE", help="Read the value from a file.")
@click.option("--from-env", metavar="VAR", help="Read the value from an environment variable.")
@json_option
def set_(
    name: str,
    surplus: tuple[str, ...],
    *,
    from_file: str | None,
    from_env: str | None,
    as_json: bool,
) -> None:
    """Keep a value, in place of an earlier one. A running gateway uses it at once.

    The value is asked for on a terminal, else read from standard input: 8 to 16,384 bytes of
    UTF-8 text. The line end of a value with one line is dropped.
    """
    if surplus:
        # Click would repeat it in its message.
        raise click.UsageError(
            "a value is never given on the command line, where the process list and your shell's"
            " history show it; if that was one, replace it where it came from"
        )
    if from_file is not None and from_env is not None:
        raise click.UsageError("give only one of --from-file and --from-env")
    if not is_secret_name(name):
        raise ConfigError(f"cannot use that as a secret's name: a name is {NAME_RULE}")
    value = _value(name, from_file, from_env)
    info = talk(lambda client: client.secrets.set(name, value))
    if as_json:
        write_json(info)
    else:
        say(f"Secret {clean(info.name)} is set: {info.id}")
    if info.warnings:
        progress("It is kept, and cannot be used before this is mended:")
        for line in info.warnings:
            progress(f"  {clean(line)}")


def _value(name: str, from_file: str | None, from_env: str | None) -> str:
    if from_env is not None:
        if from_env not in os.environ:
            raise NotFoundError(f"cannot set secret {name}: the variable {from_env} is not set")
        text = os.environ[from_env]
    elif from_file is not None:
        text = _decoded(name, _read(name, Path(from_file)))
    elif sys.stdin.isatty():
        text = str(click.prompt(f"Value of {name}", hide_input=True, err=True))
    else:
        text = _decoded(name, sys.stdin.buffer.read(MOST_BYTES + 3))
    line = text.removesuffix("\n").removesuffix("\r")
    return text if "\n" in line else line


def _read(name: str, path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(MOST_BYTES + 3)
    except OSError as error:
        raise ConfigError(f"cannot set secret {name}: {path}: {error.strerror}") from None


def _decoded(name: str, content: bytes) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise ConfigError(f"cannot set secret {name}: it is not UTF-8 text") from None


@secret.command("list", epilog="\b\nExample:\n  forkyard secret list --json")
@json_option
def list_(*, as_json: bool) -> None:
    """List secrets: names, and when each was set. Nothing tells anything of a value."""
    found = talk(lambda client: client.secrets.list())
    if as_json:
        write_json(found)
        return
    table(
        ("SECRET", "SETTING", "SET", "TROUBLE"),
        [(one.name, one.id or "-", one.set_at or "-", one.trouble or "-") for one in found],
    )
    if not found:
        progress("No secrets yet; `forkyard secret set ANTHROPIC_API_KEY` keeps one.")


@secret.command("rotate-key", epilog="\b\nExample:\n  forkyard secret rotate-key")
@json_option
def rotate_key(*, as_json: bool) -> None:
    """Seal all values with a new key. Do so after the old one was in a backup.

    Values stay as they are; replace at the provider one that may have been read. Interrupted at any
    moment nothing is lost, and the next start of the server ends what was begun.
    """
    done = talk(lambda client: client.secrets.rotate_key())
    if as_json:
        write_json(done)
    elif done.secrets:
        values = "1 value is" if done.secrets == 1 else f"{done.secrets} values are"
        say(f"{values} sealed with a new key; the old one is gone.")
    else:
        say("There are no secrets, so there is no key to replace.")


@secret.command(epilog="\b\nExample:\n  forkyard secret delete OPENAI_API_KEY")
@click.argument("name")
@json_option
def delete(name: str, *, as_json: bool) -> None:
    """Remove a secret; a running gateway forgets it at once."""
    talk(lambda client: client.secrets.delete(name))
    if as_json:
        write_json({"deleted": name})
    else:
        say(f"Secret {clean(name)} is deleted.")
