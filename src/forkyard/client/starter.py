"""Making sure that a server of our version listens, by starting one where none does.

Any number of clients may do this at once: one flock, and whoever holds it starts the server.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import socket
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from forkyard import __version__
from forkyard.base.process import start_detached
from forkyard.config import Layout, server_environment
from forkyard.errors import ConflictError, StoreError
from forkyard.wire.errors import from_wire

START_SECONDS = 120.0
"""A cold start takes about a second; on an emulated processor, or with a large journal on a slow
disk, it takes far longer. One that ends meanwhile is told at once."""

STOP_SECONDS = 20.0
LOOK_SECONDS = 0.01
ANSWER_SECONDS = 10.0
LOG_TAIL_BYTES = 2000
MOST_LOG_BYTES = 8 * 1024**2
"""A longer one is set aside at the next start; the one before it goes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answering:
    """What a listening server says of itself."""

    version: str
    pid: int
    active: int


class Starter:
    """Finds or starts the server of one state directory."""

    def __init__(self, layout: Layout) -> None:
        """Keep where the installation lies."""
        self._layout = layout

    async def ensure(self) -> None:
        """Return when a server of our version answers.

        Raises:
            ConflictError: A server of another version is busy.
            StoreError: None could be started; the end of its log is told.

        Cancellation:
            Safe at any point; a server that was being started goes on and exits when idle.
        """
        found = await self._look()
        if found is not None and found.version == __version__:
            return
        async with self._locked():
            found = await self._look()
            if found is not None and found.version != __version__:
                await self._replace(found)
                found = None
            if found is None:
                await self._start()

    async def find(self) -> Answering | None:
        """Say who listens, without starting anybody."""
        return await self._look()

    async def _look(self) -> Answering | None:
        return await asyncio.to_thread(_ask_version, self._layout.api_socket)

    @asynccontextmanager
    async def _locked(self) -> AsyncIterator[None]:
        run = self._layout.run
        try:
            run.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(run / "start.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StoreError(
                f"cannot use the state directory {self._layout.home}: {error.strerror}",
                hint="Set FORKYARD_HOME to a directory that you may write.",
            ) from error
        try:
            deadline = time.monotonic() + START_SECONDS + STOP_SECONDS
            while True:
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > deadline:
                        raise StoreError(
                            "cannot start the server: another client has been starting it for"
                            f" {START_SECONDS + STOP_SECONDS:g} s",
                            hint=f"Look at {self._layout.server_log}.",
                        ) from None
                    await asyncio.sleep(LOOK_SECONDS)
            yield
        finally:
            os.close(descriptor)

    async def _replace(self, found: Answering) -> None:
        """Ask an idle server of another version to go."""
        wanted: dict[str, object] = {"only_if_idle": True}
        try:
            await asyncio.to_thread(_post, self._layout.api_socket, "/v1/stop", wanted)
        except ConflictError as error:
            raise ConflictError(
                f"cannot use the running server: it is version {found.version}, this is"
                f" {__version__}, and it has {found.active} runs or sandboxes in progress",
                hint="Wait for them, or stop it with `forkyard serve --stop`; they go on.",
            ) from error
        deadline = time.monotonic() + STOP_SECONDS
        while await self._look() is not None:
            if time.monotonic() > deadline:
                raise ConflictError(
                    f"cannot replace the server of version {found.version}: process {found.pid}"
                    f" still answers after {STOP_SECONDS:g} s",
                    hint=f"End process {found.pid}, then ask again.",
                )
            await asyncio.sleep(LOOK_SECONDS)

    async def _start(self) -> None:
        log = self._layout.server_log
        if log.exists() and log.stat().st_size > MOST_LOG_BYTES:
            log.rename(log.with_suffix(".log.1"))
        begin = log.stat().st_size if log.exists() else 0
        from forkyard.client.rootless import (  # noqa: PLC0415 - only who starts one needs it
            refuse_where_missing,
            stand_aside,
        )

        refuse_where_missing()
        stand_aside()
        pid = await asyncio.to_thread(
            start_detached,
            [sys.executable, "-P", "-m", "forkyard", "serve", "--on-demand"],
            variables=server_environment(self._layout),
            log=str(log),
        )
        deadline = time.monotonic() + START_SECONDS
        while await self._look() is None:
            if _is_over(pid):
                if await self._look() is not None:
                    return  # somebody's `forkyard serve` was faster
                raise StoreError(
                    f"cannot start the server{_tail(log, begin) or ': it ended at once'}",
                    hint=f"See {log}; `forkyard serve` starts it in the foreground.",
                )
            if time.monotonic() > deadline:
                raise StoreError(
                    f"cannot start the server: no answer after {START_SECONDS:g} s"
                    f"{_tail(log, begin)}",
                    hint=f"See {log}.",
                )
            await asyncio.sleep(LOOK_SECONDS)


def _is_over(pid: int) -> bool:
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return True


def _tail(log: Path, begin: int) -> str:
    try:
        with log.open("rb") as file:
            end = file.seek(0, os.SEEK_END)
            file.seek(max(begin, end - LOG_TAIL_BYTES))
            text = file.read().decode(errors="backslashreplace").strip()
    except OSError:
        return ""
    told = [
        line.removeprefix("Error: ") for line in text.splitlines() if line.startswith("Error: ")
    ]
    last = told[-1:] or text.splitlines()[-1:]
    return f": {last[0]}" if last else ""


def _ask_version(path: Path) -> Answering | None:
    """Ask a listening server for its version; None where nobody listens."""
    try:
        status, body = _exchange(path, b"GET /v1/version HTTP/1.1\r\n")
    except (FileNotFoundError, NotADirectoryError, ConnectionError):
        return None
    except OSError as error:
        raise StoreError(
            f"cannot ask the server for its version: {error.strerror or error}",
            hint="Look at server.log in the state directory.",
        ) from error
    try:
        answer = json.loads(body)
        return Answering(
            version=str(answer["version"]), pid=int(answer["pid"]), active=int(answer["active"])
        )
    except (ValueError, KeyError, TypeError):
        if not body:
            return None  # it went away while we asked
        raise from_wire(body, status=status) from None


def _post(path: Path, route: str, body: dict[str, object]) -> None:
    content = json.dumps(body).encode()
    head = f"POST {route} HTTP/1.1\r\ncontent-length: {len(content)}\r\n".encode()
    try:
        status, answer = _exchange(path, head, content)
    except ConnectionError:
        return
    if status >= 400:  # noqa: PLR2004 - HTTP: errors start there
        raise from_wire(answer, status=status)


def _exchange(path: Path, head: bytes, content: bytes = b"") -> tuple[int, bytes]:
    """Make one small HTTP exchange without the weight of an HTTP library."""
    directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(ANSWER_SECONDS)
            connection.connect(f"/proc/self/fd/{directory}/{path.name}")
            connection.sendall(head + b"host: forkyard\r\nconnection: close\r\n\r\n" + content)
            answer = b""
            while chunk := connection.recv(65536):
                answer += chunk
    finally:
        os.close(directory)
    header, _, body = answer.partition(b"\r\n\r\n")
    words = header.split(b" ", 2)
    return (int(words[1]) if len(words) > 1 and words[1].isdigit() else 0), body
