"""The spare shim: forked ahead with its stage made, waiting to be told which sandbox to serve."""

from __future__ import annotations

import json
import os
import socket
import sys
from typing import NoReturn

from forkyard.shim import kernel, protocol
from forkyard.shim.files import read_at, write_at
from forkyard.shim.main import PID_FILE, Shim
from forkyard.shim.stage import Stage


def stand_by(orders: socket.socket) -> NoReturn:
    """Be a spare shim: make the stage, wait for the sandbox to serve, serve it. Never returns.

    Args:
        orders: Gives one message with the path of a spec, and with it the connection of whoever
            asked; its end means that no shim is needed any more.
    """
    status = 70
    try:
        os.chdir("/")
        os.setsid()
        os.umask(0o022)
        kernel.set_name("forkyard-spare")
        kernel.die_with_parent()
        stage, trouble = _make_stage()
        message, descriptors = protocol.receive_rights(orders, protocol.MESSAGE_LIMIT_BYTES)
        if not message:
            os._exit(0)
        kernel.live_on()
        orders.close()
        with socket.socket(fileno=descriptors[0]) as first:
            if stage is None:
                first.sendall(protocol.encode({"op": "hello", "trouble": trouble}))
                os._exit(1)
            status = _serve(stage, message.decode(), first)
    except BaseException:  # noqa: BLE001 - the last line of a process: whatever it was, keep it
        import traceback  # noqa: PLC0415 - not worth its memory in every shim

        traceback.print_exc(file=sys.stderr)
        sys.stderr.flush()
    finally:
        os._exit(status)


def _make_stage() -> tuple[Stage | None, str]:
    try:
        return Stage(), ""
    except OSError as error:
        return None, str(error)


def _serve(stage: Stage, spec_path: str, first: socket.socket) -> int:
    folder = stage.open(os.path.dirname(spec_path), os.O_RDONLY | os.O_DIRECTORY)
    spec = json.loads(read_at(folder, os.path.basename(spec_path)))
    write_at(folder, PID_FILE, stage.host_pid.encode())
    kernel.set_name("forkyard-shim")
    log = os.open(
        "shim.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600, dir_fd=folder
    )
    null = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
    for source, number in ((null, 0), (log, 1), (log, 2)):
        os.dup2(source, number)
    return Shim(stage, spec, folder, first).run()
