"""`python -m forkyard.promotion.in_workspace`: one action on a stopped workspace's files.

The view is mounted in a private mount namespace and dies with this process; the repository is
reached by descriptor only, since everything in it may have been written by an agent.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from forkyard.promotion.action import Action, act
from forkyard.promotion.record import Record
from forkyard.shim import kernel, mounts


def main() -> int:
    """Read the request from standard input, do it, print the outcome."""
    kernel.die_with_parent()
    request = json.load(sys.stdin)
    mounts.private_mount_namespace()
    record = Record(Path(request["record"]))
    view = record.view()
    mounts.mount_view(request["lowers"], str(view), upper=request["upper"], work=request["work"])
    top = os.open(view, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    path = os.fsencode(request["repository"].strip("/"))
    try:
        root = kernel.open_beneath(top, path, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        print(f"{request['repository']}: {os.strerror(error.errno or 0)}", file=sys.stderr)  # noqa: T201 - a program of its own
        return 1
    outcome = act(Action(request["action"]), root, record)
    sys.stdout.buffer.write(outcome.to_json())
    return 0


if __name__ == "__main__":
    sys.exit(main())
