"""Each OCI runtime that may be used, and a machine that has none."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from forkyard.errors import SandboxUnavailableError
from forkyard.model.execution import StopReason
from forkyard.model.workspace import Limits, NetworkPolicy
from forkyard.shim.hierarchies import detect
from forkyard.workspace.runtime import RUNTIMES
from sandboxes import Box, describe, in_box, make_layer, open_fleet


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_sandbox_confines_alike_whatever_the_runtime(home: Path, runtime: str) -> None:
    """User, filters, limits, files, time limits and clean-up are ours, not the runtime's."""

    async def body(box: Box) -> None:
        isolation = await box.fleet.isolation()
        output = await box.sh(
            "id -u; grep -E '^(Seccomp|NoNewPrivs|CapBnd):' /proc/self/status;"
            "echo written > file; touch /tmp/file /var/tmp/file /dev/shm/file && echo temporary"
        )
        hog = await box.sh("exec python3 -c 'x = bytearray(300 << 20)'")
        slow = await box.run(box.command("sleep 100", timeout_seconds=0.2, grace_seconds=0))
        await box.fleet.stop(box.id, epoch=1)

        assert (isolation.runtime or "").startswith(runtime)
        assert output.stdout.split() == [
            *("1000", "CapBnd:", "0" * 16, "NoNewPrivs:", "1", "Seccomp:", "2", "temporary")
        ]
        if detect() is not None:
            assert hog.result.stop_reason is StopReason.MEMORY
        else:
            assert "MemoryError" in hog.stderr
        assert slow.result.stop_reason is StopReason.TIMED_OUT
        assert (box.layout.upper(box.id) / "workspace/repo/file").read_text() == "written\n"

    in_box(home, body, limits=Limits(memory_bytes=100 << 20), runtimes=(runtime,))


def test_nothing_starts_when_no_runtime_works(home: Path) -> None:
    """Without a runtime there is no weaker way: it is refused, with what to install."""

    async def body() -> None:
        async with open_fleet(home, ("no-such-runtime",)) as (fleet, layout):
            spec = describe(layout, make_layer(layout, {}))
            with pytest.raises(SandboxUnavailableError) as refusal:
                await fleet.start(spec)
            isolation = await fleet.isolation()

        assert "no-such-runtime is not installed" in refusal.value.message
        assert "Install crun" in (refusal.value.hint or "")
        assert isolation.runtime is None
        assert list(layout.workspaces.glob("*/sandbox/shim.sock")) == []

    asyncio.run(body())


def test_open_network_reaches_no_private_address(home: Path) -> None:
    """A build's network has an address and a resolver; this host and private nets are black."""

    async def body(box: Box) -> None:
        output = await box.sh(
            "grep -c tap0 /proc/net/dev; cat /etc/resolv.conf;"
            "for a in 10.0.2.2 169.254.169.254 10.255.255.53 192.168.1.1 172.16.0.1 127.0.0.1; do "
            "python3 - $a <<'END'\n"
            "import socket, sys\n"
            "s = socket.socket(); s.settimeout(2)\n"
            "try:\n    s.connect((sys.argv[1], 80)); print(sys.argv[1], 'REACHED')\n"
            "except OSError as e:\n    print(sys.argv[1], type(e).__name__, e.errno)\n"
            "END\ndone"
        )
        lines = output.stdout.splitlines()

        assert lines[:2] == ["1", "nameserver 10.0.2.3"]
        assert "REACHED" not in output.stdout
        # 22: the kernel's answer to a route into a black hole
        assert [line for line in lines if line.endswith(" 22")] == [
            "169.254.169.254 OSError 22",
            "10.255.255.53 OSError 22",
            "192.168.1.1 OSError 22",
            "172.16.0.1 OSError 22",
        ]

    in_box(home, body, network=NetworkPolicy.OPEN)
