"""The first process of a container whose root file system is an image: a program of our own.

An image may hold no shell, and nothing of it is to be trusted with being process 1. So that program
is ours and needs nothing: a few instructions in an ELF file, written here byte by byte. It ignores
SIGCHLD, whereupon the kernel itself reaps whatever is orphaned, and sleeps for ever.
"""

from __future__ import annotations

import platform
import struct

from forkyard.errors import SandboxUnavailableError

PLACE = "/dev/.first"
"""Where it is mounted inside: in a file system of the sandbox's own, so that no image is written
to for it."""
_BASE = 0x40_0000
_HEADERS = 64 + 56

# rt_sigaction(SIGCHLD, {SIG_IGN}, 0, 8), then pause() (ppoll where there is none) for ever; the
# action, 32 bytes of which the first word is SIG_IGN, is made on the stack.
_X86_64 = bytes.fromhex(
    "4883ec40"  # sub rsp, 64
    "48c7042401000000"  # mov qword [rsp], 1
    "48c744240800000000"  # mov qword [rsp+8], 0
    "48c744241000000000"  # mov qword [rsp+16], 0
    "48c744241800000000"  # mov qword [rsp+24], 0
    "bf11000000"  # mov edi, 17
    "4889e6"  # mov rsi, rsp
    "31d2"  # xor edx, edx
    "41ba08000000"  # mov r10d, 8
    "b80d000000"  # mov eax, 13
    "0f05"  # syscall
    "b822000000"  # mov eax, 34
    "0f05"  # syscall
    "ebf7"  # jmp to the second call
)
_AARCH64 = struct.pack(
    "<16I",
    0xD10103FF,  # sub sp, sp, #64
    0xD2800020,  # mov x0, #1
    0xF90003E0,  # str x0, [sp]
    0xF90007FF,  # str xzr, [sp, #8]
    0xF9000BFF,  # str xzr, [sp, #16]
    0xF9000FFF,  # str xzr, [sp, #24]
    0xD2800220,  # mov x0, #17
    0x910003E1,  # mov x1, sp
    0xD2800002,  # mov x2, #0
    0xD2800103,  # mov x3, #8
    0xD28010C8,  # mov x8, #134
    0xD4000001,  # svc #0
    0xD2800000,  # mov x0, #0: ppoll of nothing, without end
    0xD2800001,  # mov x1, #0
    0xD2800002,  # mov x2, #0
    0xD2800003,  # mov x3, #0
) + struct.pack("<4I", 0xD2800004, 0xD2800928, 0xD4000001, 0x17FFFFF9)
_BY_MACHINE = {"x86_64": (0x3E, _X86_64), "aarch64": (0xB7, _AARCH64)}


def first_process() -> bytes:
    """Write the program.

    Raises:
        SandboxUnavailableError: There is none for this kind of machine.
    """
    machine, code = _BY_MACHINE.get(platform.machine(), (0, b""))
    if not code:
        raise SandboxUnavailableError(
            f"cannot run a workspace with an image: this machine is {platform.machine()}",
            hint="Use image `host`.",
        )
    size = _HEADERS + len(code)
    identity = b"\x7fELF" + bytes((2, 1, 1)) + bytes(9)
    header = identity + struct.pack(
        "<HHIQQQIHHHHHH", 2, machine, 1, _BASE + _HEADERS, 64, 0, 0, 64, 56, 1, 64, 0, 0
    )
    segment = struct.pack("<IIQQQQQQ", 1, 5, 0, _BASE, _BASE, size, size, 0x1000)
    return header + segment + code
