"""A person at a terminal: a program of ours on a pseudo-terminal, its keys and its screen."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

PATIENCE_SECONDS = 60.0


class Person:
    """Types into a program and reads its screen."""

    def __init__(self, program: subprocess.Popen[bytes], terminal: int, line: int) -> None:
        """Sit down before a program; `line` is the terminal's other end, kept to look at it."""
        self.program = program
        self._terminal = terminal
        self._line = line
        self.screen = b""

    def type(self, keys: bytes) -> None:
        """Press keys."""
        os.write(self._terminal, keys)

    def resize(self, rows: int, columns: int) -> None:
        """Change the window's size, as its owner's program does."""
        fcntl.ioctl(self._terminal, termios.TIOCSWINSZ, struct.pack("4H", rows, columns, 0, 0))

    def reads(self, text: bytes) -> None:
        """Wait until the screen shows a text that was not read before."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while text not in self.screen:
            left = deadline - time.monotonic()
            ready = select.select([self._terminal], [], [], max(0.0, left))[0]
            chunk = b""
            if ready:
                with contextlib.suppress(OSError):  # EIO: nobody holds its other end
                    chunk = os.read(self._terminal, 65536)
            assert chunk, f"{text!r} does not come; the screen shows {self.screen!r}"
            self.screen += chunk
        self.screen = self.screen.partition(text)[2]

    def modes(self) -> list[object]:
        """Look how the terminal is set."""
        return list(termios.tcgetattr(self._line))

    def leaves(self) -> int:
        """Wait for the program's end."""
        return self.program.wait(PATIENCE_SECONDS)


@contextlib.contextmanager
def seated(
    *arguments: str | Path,
    variables: Mapping[str, str],
    rows: int = 24,
    columns: int = 80,
) -> Iterator[Person]:
    """Run `forkyard` on a terminal of its own for a block; it is ended afterwards."""
    terminal, line = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("4H", rows, columns, 0, 0))

    def take() -> None:
        os.setsid()
        fcntl.ioctl(line, termios.TIOCSCTTY, 0)

    program = subprocess.Popen(
        [sys.executable, "-m", "forkyard", *arguments],
        env={**os.environ, "TERM": "xterm-test", **variables},
        stdin=line,
        stdout=line,
        stderr=line,
        preexec_fn=take,  # noqa: PLW1509 - the tests that sit at terminals have no threads
    )
    try:
        yield Person(program, terminal, line)
    finally:
        if program.poll() is None:
            program.send_signal(signal.SIGKILL)
        program.wait()
        os.close(terminal)
        os.close(line)
