"""The internet of a test's own answers as it should: who is refused there could be reached."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading

from own_internet import HERE, OwnInternet, own_internet

_ASK = (
    "import socket,sys; s=socket.create_connection((sys.argv[1],80),5); print(s.recv(9).decode())"
)


def _say(listener: socket.socket, word: bytes) -> None:
    def answer() -> None:
        with listener, listener.accept()[0] as connection:
            connection.sendall(word)

    threading.Thread(target=answer, daemon=True).start()


def _ask(internet: OwnInternet, host: str) -> str:
    words = [*internet.here(), sys.executable, "-c", _ASK, host]
    return subprocess.run(words, capture_output=True, text=True, check=False).stdout.strip()


def test_names_lead_to_what_listens_out_there_when_asked_from_here() -> None:
    """A name of the table is resolved by the resolver setting, and its address answers."""
    with own_internet({"www.example.org": "11.22.33.44"}) as internet:
        _say(internet.listen("11.22.33.44", 80), b"hello")
        _say(internet.listen("10.9.8.7", 80), b"private")
        _say(internet.listen("169.254.169.254", 80), b"metadata")
        _say(internet.listen("2a0b:22::4", 80), b"six")
        _say(internet.listen_here(HERE, 80), b"mine")

        answers = {
            host: _ask(internet, host)
            for host in ("www.example.org", "10.9.8.7", "169.254.169.254", "2a0b:22::4", HERE)
        }

        assert list(answers.values()) == ["hello", "private", "metadata", "six", "mine"]
        assert "www.example.org" in internet.asked
        assert _ask(internet, "absent.example.org") == ""


def test_a_function_runs_here_when_told_to() -> None:
    """Code of a test sees the other network and resolver, and its result comes back."""
    with own_internet({"www.example.org": "11.22.33.44"}) as internet:
        address = internet.run_here(lambda: socket.gethostbyname("www.example.org"))

        assert address == "11.22.33.44"
