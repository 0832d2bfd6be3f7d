"""Boots a guest that does one thing and powers off; what it said on its serial port comes back."""

from __future__ import annotations

import subprocess
import tarfile
from dataclasses import dataclass
from pathlib import Path

from guest.prepare import ROOT, Machine

_PROCESSOR = ("-accel", "tcg,thread=multi,tb-size=1024", "-cpu", "Nehalem", "-smp", "2")
"""Emulated: /dev/kvm also exists on machines where no guest gets past its first instructions."""
_KERNEL_WORDS = (
    "console=ttyS0 panic=-1 quiet mitigations=off nopti nokaslr"
    " no_timer_check nowatchdog rcupdate.rcu_cpu_stall_suppress=1"
)
"""Quick where every instruction is dear; and no alarm where a busy host lets the guest wait."""
_END = "guest: the order ended with "


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a guest ended."""

    exit_code: int | None
    """Of the order; None where it never ended."""
    console: str


def run_in_guest(
    machine: Machine, order: str, *, cgroups: str, folder: Path, timeout: float
) -> Ended:
    """Boot a guest and run a shell script there, in a copy of this project.

    Args:
        machine: What to boot from; it is not written to.
        order: The script.
        cgroups: What is mounted there: `v1` or `v2`.
        folder: Takes what the guest is given and what it says.
        timeout: In seconds; past it the guest is killed.
    """
    console = folder / "console"
    console.touch()
    (folder / "order").write_text(order)
    _pack(folder / "order", folder / "project")
    guest = subprocess.Popen(
        [
            *("qemu-system-x86_64", *_PROCESSOR, "-m", "3072"),
            *("-display", "none", "-no-reboot", "-nodefaults", "-serial", f"file:{console}"),
            *("-kernel", str(machine.kernel), "-initrd", str(machine.first)),
            *("-append", f"{_KERNEL_WORDS} guest.cgroups={cgroups}"),
            *("-drive", f"file={machine.disk},format=raw,if=virtio,snapshot=on"),
            *("-drive", f"file={folder / 'project'},format=raw,if=virtio,readonly=on"),
        ],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        said, _ = guest.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        said = f"killed after {timeout:g} s\n"
    finally:
        guest.kill()
        guest.wait()
    text = console.read_text(errors="replace")
    _, _, code = text.rpartition(_END)
    ended = int(code.split()[0]) if _END in text else None
    return Ended(exit_code=ended, console=text + said)


def _pack(order: Path, target: Path) -> None:
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    with tarfile.open(target, "w") as archive:
        archive.add(order, "order")
        for name in filter(None, listed.stdout.split("\0")):
            if (ROOT / name).is_file():
                archive.add(ROOT / name, name)
