"""What a shim and its spawner say to each other: a command, its descriptors, and how it began."""

from __future__ import annotations

import array
import json
import socket
import struct
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from forkyard.shim.protocol import Message, receive_rights

STAGES = ("join", "directory", "execute")
EXECUTING = b"x"
_HEADER = struct.Struct("=I")


class Command(NamedTuple):
    """What to execute, and as whom, inside the container."""

    argv: Sequence[str]
    variables: Mapping[str, str]
    directory: str
    user: int
    file_bytes: int | None = None
    """RLIMIT_FSIZE, where a disk limit is set."""
    terminal: Sequence[int] | None = None
    """Rows and columns of a terminal of its own, in place of the three descriptors."""
    copy: Sequence[str] | None = None
    """Direction and path: nothing is executed, but files are copied (shim/copying.py)."""
    capabilities: int = 0
    """What it keeps: nothing, but as root of a workspace with an image."""
    is_held: bool = False
    """Whether it waits, with everything done but the execution, for one more byte."""


def command_of(spec: Message, capabilities: int) -> Command:
    """Read what a server wants executed."""
    return Command(
        argv=spec["argv"],
        variables=spec["variables"],
        directory=spec["working_directory"],
        user=spec["user"],
        file_bytes=spec.get("file_bytes"),
        terminal=spec.get("terminal"),
        capabilities=capabilities,
        copy=spec.get("copy"),
    )


def send(channel: socket.socket, message: Message, descriptors: Sequence[int]) -> None:
    """Send one message, with descriptors."""
    body = json.dumps(message).encode()
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
    channel.sendmsg([_HEADER.pack(len(body))], rights)
    channel.sendall(body)


def receive(channel: socket.socket) -> tuple[Message, list[int]] | None:
    """Receive one message and its descriptors; None where the other end is gone."""
    header, descriptors = receive_rights(channel, _HEADER.size)
    if len(header) < _HEADER.size:
        return None
    (left,) = _HEADER.unpack(header)
    body = b""
    while left:
        chunk = channel.recv(min(left, 1 << 20))
        if not chunk:
            return None
        body += chunk
        left -= len(chunk)
    message = json.loads(body)
    return (message, descriptors) if isinstance(message, dict) else None


def reply(channel: socket.socket, answer: Message) -> None:
    """Send one message without descriptors."""
    body = json.dumps(answer).encode()
    channel.sendall(_HEADER.pack(len(body)) + body)
