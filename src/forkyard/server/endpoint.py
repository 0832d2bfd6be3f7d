"""Binding a unix socket, for its owner only, whose path may be longer than 107 bytes."""

from __future__ import annotations

import contextlib
import os
import socket
from pathlib import Path

from forkyard.errors import StoreError

BACKLOG = 512


def listen(path: Path) -> socket.socket:
    """Listen on a unix socket, mode 0600, in its directory of mode 0700.

    A socket file left by a killed server is replaced: the caller holds the installation's lock,
    so no live server can own it. The new one is renamed into place when it is ready, so that a
    client sees either nobody or somebody who listens.

    Raises:
        StoreError: The directory or the socket cannot be made.
    """
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.parent.chmod(0o700)
        directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise StoreError(f"cannot use {path.parent}: {error.strerror}") from error
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    fresh = f".{path.name}.new"
    try:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(fresh, dir_fd=directory)
        # The kernel follows the descriptor, so the length of the directory's path is free.
        listener.bind(f"/proc/self/fd/{directory}/{fresh}")
        os.chmod(fresh, 0o600, dir_fd=directory)
        listener.listen(BACKLOG)
        listener.settimeout(0)
        os.rename(fresh, path.name, src_dir_fd=directory, dst_dir_fd=directory)
    except OSError as error:
        listener.close()
        raise StoreError(f"cannot listen on {path}: {error.strerror}") from error
    finally:
        os.close(directory)
    return listener
