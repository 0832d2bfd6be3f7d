"""Compiling the system call filters once, so that no sandbox start pays for it.

Given the program ready-made, a runtime starts a hardened container in half the time it takes
when it compiles the same list itself.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import tempfile
from typing import Literal

from forkyard.errors import SandboxUnavailableError
from forkyard.workspace.drivers import syscalls

_ALLOW = 0x7FFF_0000
_ERRNO = 0x0005_0000
_BAD_ARCHITECTURE = 2
"""libseccomp's attribute: what happens to calls by another architecture's table (x86 and x32 on
x86-64), by which a filter that forgets them is walked around. Here: refused, all of them."""
_EQUAL, _MASKED_EQUAL = 4, 7


class _Comparison(ctypes.Structure):
    _fields_ = (
        ("argument", ctypes.c_uint),
        ("operator", ctypes.c_int),
        ("first", ctypes.c_uint64),
        ("second", ctypes.c_uint64),
    )


class _Filter:
    """One libseccomp context."""

    def __init__(self, library: ctypes.CDLL, default: int) -> None:
        self._library = library
        self._context = ctypes.c_void_p(library.seccomp_init(ctypes.c_uint32(default)))
        library.seccomp_attr_set(self._context, _BAD_ARCHITECTURE, _ERRNO | errno.EPERM)

    def rule(self, action: int, name: str, *comparisons: _Comparison) -> None:
        number = self._library.seccomp_syscall_resolve_name(name.encode())
        if number == -1:
            return  # a call that this library or architecture does not know
        array = (_Comparison * len(comparisons))(*comparisons)
        result = self._library.seccomp_rule_add_array(
            self._context, ctypes.c_uint32(action), number, len(comparisons), array
        )
        if result != 0:
            message = f"cannot build the system call filter: rule for {name} gave {result}"
            raise SandboxUnavailableError(message, hint="Update libseccomp.")

    def export(self) -> bytes:
        with tempfile.TemporaryFile() as file:
            result = self._library.seccomp_export_bpf(self._context, file.fileno())
            self._library.seccomp_release(self._context)
            if result != 0:
                message = f"cannot build the system call filter: export gave {result}"
                raise SandboxUnavailableError(message, hint="Update libseccomp.")
            file.seek(0)
            return file.read()


def _library() -> ctypes.CDLL:
    try:
        library = ctypes.CDLL("libseccomp.so.2")
    except OSError as error:
        message = f"cannot build the system call filter: {error}"
        raise SandboxUnavailableError(message, hint="Install the package libseccomp2.") from error
    library.seccomp_init.restype = ctypes.c_void_p
    return library


RootKind = Literal["none", "image", "builder"]


@functools.cache
def filters(*, spawner: bool, root: RootKind = "none") -> tuple[bytes, ...]:
    """Compile the filters of every sandboxed command, in the order to load them.

    Args:
        spawner: Whether clone3 stays allowed, for the process that forks the commands and takes
            it from each of them.
        root: What commands as root of the workspace may do besides, if there is such a root.

    The second one stands apart, since a rule "every ioctl but these two" cannot be said in an
    allowlist: two unequal-conditions on one argument are or-ed, and 64-bit comparisons are
    walked around with high bits.
    """
    library = _library()
    allow = _Filter(library, _ERRNO | errno.EPERM)
    for name in (*syscalls.ALLOWED, *syscalls.ROOT_ALLOWED[root], "ioctl"):
        allow.rule(_ALLOW, name)
    if root != "builder":
        allow.rule(_ALLOW, "clone", _Comparison(0, _MASKED_EQUAL, syscalls.NAMESPACE_FLAGS, 0))
    # The spawner's own last filter takes clone3 away from every command (shim/becoming.py); the
    # runtime's first process gets the list without it.
    if spawner:
        allow.rule(_ALLOW, "clone3")
    else:
        allow.rule(_ERRNO | errno.ENOSYS, "clone3")
    for family in range(syscalls.LAST_SOCKET_FAMILY + 1):
        if family in syscalls.SOCKET_FAMILIES:
            allow.rule(_ALLOW, "socket", _Comparison(0, _EQUAL, family, 0))
        else:
            allow.rule(_ERRNO | errno.EAFNOSUPPORT, "socket", _Comparison(0, _EQUAL, family, 0))
    for name, position in (("mknod", 1), ("mknodat", 2)):
        for kind in syscalls.MKNOD_TYPES:
            allow.rule(
                _ALLOW,
                name,
                _Comparison(position, _MASKED_EQUAL, syscalls.FILE_TYPE_MASK, kind),
            )
    deny = _Filter(library, _ALLOW)
    for request in syscalls.TERMINAL_INJECTION:
        deny.rule(
            _ERRNO | errno.EPERM, "ioctl", _Comparison(1, _MASKED_EQUAL, 0xFFFF_FFFF, request)
        )
    return allow.export(), deny.export()
