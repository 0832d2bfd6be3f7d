"""`python -m benchmarks.runner`: runs commands one at a time and times each to its exit.

It sits in a mount namespace of its own, where podman's runtime finds a cgroup tree that it
accepts, so that nothing has to be entered on the clock.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import time

_PR_SET_CHILD_SUBREAPER = 36


def main() -> None:
    """Read argument lists, one per line as JSON; answer status, seconds and output of each."""
    # What an engine leaves behind of its containers is ours to reap.
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    for line in sys.stdin:
        argv = json.loads(line)
        begin = time.perf_counter()
        ended = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, check=False)
        seconds = time.perf_counter() - begin
        _reap()
        said = (ended.stdout + ended.stderr).decode(errors="replace")[-2000:]
        print(json.dumps([ended.returncode, seconds, said]), flush=True)


def _reap() -> None:
    try:
        while os.waitpid(-1, os.WNOHANG)[0] != 0:
            pass
    except ChildProcessError:
        return


if __name__ == "__main__":
    main()
