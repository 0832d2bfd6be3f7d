"""Secrets over the command line, the SDK and the API: in, listed, gone, and never out again."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from forkyard import connect_blocking
from forkyard.base.clock import SystemClock
from forkyard.config import Layout
from forkyard.errors import ConfigError, NotFoundError
from forkyard.store.secrets import Secrets
from forkyard.wire.secrets import SecretInfo, SecretRequest

NAME = "ANTHROPIC_API_KEY"
VALUE = "sk-ant-canary-0123456789"


def secret(
    *arguments: str, stdin: str = "", variables: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run `forkyard secret`."""
    return subprocess.run(
        [sys.executable, "-m", "forkyard", "secret", *arguments],
        check=False,
        capture_output=True,
        text=True,
        input=stdin,
        env={**os.environ, **(variables or {})},
        timeout=60,
    )


def kept(home: Path, name: str = NAME) -> str:
    """Open a secret as the server does."""
    return Secrets(Layout(home).secrets, SystemClock()).get(name)


def test_value_is_kept_whatever_it_is_read_from(home: Path, tmp_path: Path) -> None:
    """Standard input, a file or a variable; the only line end of a value is dropped."""
    several = "-----BEGIN-----\n0123456789\n-----END-----\n"
    (tmp_path / "file").write_text(several)
    told = [
        secret("set", "ONE", stdin=f"{VALUE}\r\n"),
        secret("set", "TWO", "--from-file", str(tmp_path / "file")),
        secret("set", "THREE", "--from-env", "SOURCE", variables={"SOURCE": VALUE}),
    ]

    assert [done.returncode for done in told] == [0, 0, 0]
    assert [kept(home, name) for name in ("ONE", "TWO", "THREE")] == [VALUE, several, VALUE]
    assert all(VALUE not in done.stdout + done.stderr for done in told)
    listed = json.loads(secret("list", "--json").stdout)
    assert [one["name"] for one in listed] == ["ONE", "THREE", "TWO"]
    assert all(set(one) == {"name", "id", "set_at", "trouble"} for one in listed)


def test_value_is_not_shown_when_it_is_asked_for(home: Path) -> None:
    """On a terminal the value is asked for with the echo off."""
    parent, child = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "forkyard", "secret", "set", NAME],
        stdin=child,
        stdout=child,
        stderr=child,
        start_new_session=True,
    )
    shown = b""
    while b"Value of ANTHROPIC_API_KEY" not in shown:
        shown += os.read(parent, 1000)
    while termios.tcgetattr(child)[3] & termios.ECHO:
        pass
    os.write(parent, VALUE.encode() + b"\n")
    assert process.wait(60) == 0
    os.close(child)
    while more := _read(parent):
        shown += more
    os.close(parent)

    assert VALUE.encode() not in shown
    assert b"is set: sec_" in shown
    assert kept(home) == VALUE


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 1000)
    except OSError:  # how a terminal says that nobody is at the other end
        return b""


@pytest.mark.parametrize(
    ("arguments", "stdin", "code", "reason"),
    [
        (("set", NAME, VALUE), "", 2, "never given on the command line"),
        (("set", VALUE + "/+", "--json"), "x", 2, "cannot use that as a secret's name"),
        (("set", NAME), "short\n", 2, "has 5 bytes"),
        (("set", NAME), "x" * 20_000, 2, "are the most"),
        (("set", NAME), f" {VALUE}", 2, "white space"),
        (("set", NAME, "--from-file", "absent"), "", 2, "No such file"),
        (("set", NAME, "--from-env", "ABSENT"), "", 3, "is not set"),
        (("set", NAME, "--from-env", "A", "--from-file", "b"), "", 2, "only one of"),
        (("delete", NAME), "", 3, "there is none of that name"),
    ],
)
def test_what_cannot_be_is_refused_without_repeating_the_value(
    home: Path, arguments: tuple[str, ...], stdin: str, code: int, reason: str
) -> None:
    """Each refusal has its status and reason, and nothing of the value."""
    done = secret(*arguments, stdin=stdin)

    assert (done.returncode, reason in done.stderr) == (code, True), done.stderr
    assert "canary" not in done.stdout + done.stderr
    assert not Layout(home).secrets.exists()


def test_secrets_are_kept_over_a_restart_and_told_by_the_sdk(home: Path) -> None:
    """A new value has a new id; what is deleted is gone; errors are those of the SDK."""
    with connect_blocking() as client:
        first = client.secrets.set(NAME, VALUE)
        client.stop_server()
    with connect_blocking() as client:
        assert client.secrets.list() == [
            SecretInfo(**first.model_dump(exclude={"warnings"})),
        ]
        second = client.secrets.set(NAME, VALUE)
        assert second.id != first.id
        client.secrets.delete(NAME)
        assert client.secrets.list() == []
        with pytest.raises(NotFoundError):
            client.secrets.delete(NAME)
        with pytest.raises(ConfigError):
            client.secrets.delete("../key")
        with pytest.raises(ConfigError, match="not UTF-8"):
            client.secrets.set(NAME, "\ud800 canary")
    assert VALUE not in repr(SecretRequest(value=VALUE))
    written = [path.read_bytes() for path in home.rglob("*") if path.is_file()]
    assert not any(VALUE.encode() in content for content in written)


ROTATE = """
import sys
from pathlib import Path
from forkyard.base.clock import SystemClock
from forkyard.store.secrets import Secrets
Secrets(Path(sys.argv[1]), SystemClock()).rotate_key()
"""


@pytest.mark.parametrize("point", ["K01", "K02", "K02@2", "K02@3", "K03"])
def test_every_value_opens_when_a_change_of_the_key_was_killed(tmp_path: Path, point: str) -> None:
    """At any line, before and after the next process has ended what was begun."""
    names = ("A", "B", "C")
    store = Secrets(tmp_path, SystemClock())
    for name in names:
        store.set(name, VALUE + name)
    old = (tmp_path / "key").read_bytes()

    done = subprocess.run(
        [sys.executable, "-c", ROTATE, tmp_path],
        check=False,
        env={**os.environ, "FORKYARD_FAILPOINT": point},
        timeout=60,
    )

    assert done.returncode == -signal.SIGKILL
    assert store.values() == {name: VALUE + name for name in names}
    store.set("D", VALUE + "D")
    store.finish_rotation()
    assert store.values() == {name: VALUE + name for name in (*names, "D")}
    assert (tmp_path / "key").read_bytes() != old
    assert not (tmp_path / "key.new").exists()


def test_key_is_changed_and_values_stay_when_it_is_asked_for(home: Path) -> None:
    """By the command, in words and for programs."""
    assert "no secrets" in secret("rotate-key").stdout
    secret("set", NAME, stdin=VALUE)
    old = (Layout(home).secrets / "key").read_bytes()

    done = secret("rotate-key")

    assert done.stdout == "1 value is sealed with a new key; the old one is gone.\n"
    assert json.loads(secret("rotate-key", "--json").stdout) == {"secrets": 1}
    assert (Layout(home).secrets / "key").read_bytes() != old
    assert kept(home) == VALUE


def test_problems_of_the_settings_are_told_when_a_secret_is_set(home: Path) -> None:
    """The secret is kept; the file is named with its lines."""
    Layout(home).gateway_settings.write_text("providers:\n  - {name: 1}\n")

    done = secret("set", NAME, stdin=VALUE)

    assert done.returncode == 0
    assert "is set" in done.stdout
    assert "gateway.yaml:2" in done.stderr
    assert kept(home) == VALUE
