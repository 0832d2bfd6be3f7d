"""System calls that Python 3.11 has no name for, as thin functions that raise OSError."""

from __future__ import annotations

import ctypes
import os
import signal
import struct

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long

CLONE_NEWNS = 0x0002_0000
CLONE_PARENT = 0x0000_8000
CLONE_NEWCGROUP = 0x0200_0000
CLONE_NEWUTS = 0x0400_0000
CLONE_NEWIPC = 0x0800_0000
CLONE_NEWUSER = 0x1000_0000
CLONE_NEWPID = 0x2000_0000
CLONE_NEWNET = 0x4000_0000
_CLONE_INTO_CGROUP = 0x2_0000_0000

MS_RDONLY = 0x1
MS_NOSUID = 0x2
MS_NODEV = 0x4
MS_NOEXEC = 0x8
MS_REMOUNT = 0x20
MS_BIND = 0x1000
MS_REC = 0x4000
MS_PRIVATE = 0x4_0000
MNT_DETACH = 0x2

_AT_FDCWD = -100
_AT_EMPTY_PATH = 0x1000
_OPEN_TREE_CLONE = 0x1
_OPEN_TREE_CLOEXEC = 0x8_0000
_MOVE_MOUNT_F_EMPTY_PATH = 0x4
_MOUNT_ATTR_RDONLY = 0x1
_MOUNT_ATTR_IDMAP = 0x10_0000

# The numbers above 424 are the same on every architecture.
_SYS_PIDFD_SEND_SIGNAL = 424
_SYS_OPEN_TREE = 428
_SYS_MOVE_MOUNT = 429
_SYS_PIDFD_OPEN = 434
SYS_CLONE3 = 435
_SYS_CLOSE_RANGE = 436
_SYS_OPENAT2 = 437
_SYS_MOUNT_SETATTR = 442
_BY_MACHINE = {"x86_64": (56, 317), "aarch64": (220, 277)}
_SYS_CLONE, _SYS_SECCOMP = _BY_MACHINE.get(os.uname().machine, (-1, -1))

RESOLVE_NO_XDEV = 0x01
RESOLVE_NO_MAGICLINKS = 0x02
RESOLVE_NO_SYMLINKS = 0x04
RESOLVE_BENEATH = 0x08

_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_SET_KEEPCAPS = 8
_PR_SET_NAME = 15
_PR_CAPBSET_DROP = 24
_PR_SET_NO_NEW_PRIVS = 38
_PR_CAP_AMBIENT = 47
_PR_CAP_AMBIENT_CLEAR_ALL = 4
_SECCOMP_SET_MODE_FILTER = 1
_CAPABILITY_VERSION_3 = 0x2008_0522
LAST_CAPABILITY = 63


def _check(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def _syscall(what: str, number: int, *arguments: object) -> int:
    packed = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    return _check(_libc.syscall(ctypes.c_long(number), *packed), what)


def unshare(flags: int) -> None:
    """Leave the namespaces that the flags name."""
    _check(_libc.unshare(ctypes.c_int(flags)), "unshare")


def setns(descriptor: int, flags: int) -> None:
    """Join namespaces; a pidfd joins several at once (kernel 5.8)."""
    _check(_libc.setns(ctypes.c_int(descriptor), ctypes.c_int(flags)), "setns")


def clone(flags: int) -> int:
    """Fork with namespace flags; 0 in the child, as fork.

    The C library's fork handlers do not run, so only a process without threads may call this.
    """
    return _syscall("clone", _SYS_CLONE, flags | signal.SIGCHLD, 0, 0, 0, 0)


def clone_into(group: int, flags: int) -> int:
    """Fork with the child born in a v2 cgroup, given by an open directory (kernel 5.7).

    No process is moved, so the kernel waits for nothing. With CLONE_PARENT the child tells its
    end as the caller's own does.
    """
    ending = 0 if flags & CLONE_PARENT else signal.SIGCHLD
    arguments = struct.pack("=11Q", flags | _CLONE_INTO_CGROUP, 0, 0, 0, ending, *[0] * 5, group)
    return _syscall("clone3", SYS_CLONE3, ctypes.c_char_p(arguments), len(arguments))


def clone3(flags: int) -> int:
    """Fork with namespace flags that a system call filter of `clone` refuses."""
    ending = 0 if flags & CLONE_PARENT else signal.SIGCHLD
    arguments = struct.pack("=11Q", flags, 0, 0, 0, ending, *[0] * 6)
    return _syscall("clone3", SYS_CLONE3, ctypes.c_char_p(arguments), len(arguments))


def mount(source: str, target: str, kind: str, flags: int = 0, options: str = "") -> None:
    """Make one mount, by the arguments of the system call."""
    _check(
        _libc.mount(
            os.fsencode(source),
            os.fsencode(target),
            os.fsencode(kind),
            ctypes.c_ulong(flags),
            os.fsencode(options),
        ),
        f"mount {kind} on {target}",
    )


def unmount(target: str, flags: int = 0) -> None:
    """Unmount as umount2(2)."""
    _check(_libc.umount2(os.fsencode(target), ctypes.c_int(flags)), f"umount {target}")


def clone_mount(directory: int, target: str, *, user_namespace: int | None, readonly: bool) -> None:
    """Bind an open directory to a target, its ids mapped through a user namespace.

    Needs kernel 5.19 where overlayfs is stacked on the result.
    """
    tree = clone_tree(directory, user_namespace=user_namespace, readonly=readonly)
    try:
        attach(tree, target)
    finally:
        os.close(tree)


def clone_tree(directory: int, *, user_namespace: int | None = None, readonly: bool = False) -> int:
    """Give a mount of an open directory that is attached nowhere yet, as a descriptor."""
    tree = _syscall(
        "open_tree",
        _SYS_OPEN_TREE,
        directory,
        ctypes.c_char_p(b""),
        _AT_EMPTY_PATH | _OPEN_TREE_CLONE | _OPEN_TREE_CLOEXEC,
    )
    attributes = (_MOUNT_ATTR_IDMAP if user_namespace is not None else 0) | (
        _MOUNT_ATTR_RDONLY if readonly else 0
    )
    if not attributes:
        return tree
    packed = struct.pack("=QQQQ", attributes, 0, 0, user_namespace or 0)
    try:
        _syscall(
            "mount_setattr",
            _SYS_MOUNT_SETATTR,
            tree,
            ctypes.c_char_p(b""),
            _AT_EMPTY_PATH,
            ctypes.c_char_p(packed),
            len(packed),
        )
    except OSError:
        os.close(tree)
        raise
    return tree


def attach(tree: int, target: str) -> None:
    """Attach a mount of `clone_tree` in the mount namespace that the caller is in now."""
    _syscall(
        "move_mount",
        _SYS_MOVE_MOUNT,
        tree,
        ctypes.c_char_p(b""),
        _AT_FDCWD,
        ctypes.c_char_p(os.fsencode(target)),
        _MOVE_MOUNT_F_EMPTY_PATH,
    )


def open_beneath(directory: int, path: bytes, flags: int, mode: int = 0) -> int:
    """Open a path below a directory, never through a link or into another mount.

    Raises:
        OSError: ELOOP for a link on the way, EXDEV for leaving the directory or its mount.
    """
    resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS | RESOLVE_NO_XDEV
    how = struct.pack("=QQQ", flags | os.O_CLOEXEC, mode, resolve)
    return _syscall(
        "openat2", _SYS_OPENAT2, directory, ctypes.c_char_p(path), ctypes.c_char_p(how), len(how)
    )


def pidfd_open(pid: int) -> int:
    """Open a process by a descriptor that never means another one."""
    return _syscall("pidfd_open", _SYS_PIDFD_OPEN, pid, 0)


def pidfd_send_signal(descriptor: int, number: int) -> None:
    """Signal a process by its descriptor."""
    _syscall("pidfd_send_signal", _SYS_PIDFD_SEND_SIGNAL, descriptor, number, 0, 0)


def close_from(first: int) -> None:
    """Close every descriptor from this number on."""
    _syscall("close_range", _SYS_CLOSE_RANGE, first, 0xFFFF_FFFF, 0)


def die_with_parent() -> None:
    """Be killed when the parent process ends."""
    _check(_libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "prctl PDEATHSIG")


def live_on() -> None:
    """Take `die_with_parent` back."""
    _check(_libc.prctl(_PR_SET_PDEATHSIG, 0, 0, 0, 0), "prctl PDEATHSIG")


def set_name(name: str) -> None:
    """Set the name that ps shows."""
    _check(_libc.prctl(_PR_SET_NAME, ctypes.c_char_p(name.encode()[:15]), 0, 0, 0), "prctl NAME")


def set_title(title: str) -> None:
    """Replace the command line that everybody may read, and forks inherit, by a title.

    The C library keeps a pointer to where the kernel put the arguments; they are one block.
    """
    with open("/proc/self/cmdline", "rb") as file:
        length = len(file.read())
    block = ctypes.c_void_p.in_dll(_libc, "program_invocation_name")
    ctypes.memset(block.value or 0, 0, length)
    ctypes.memmove(block.value or 0, title.encode(), min(len(title), length - 1))


def forbid_new_privileges() -> None:
    """No exec may ever raise privileges again."""
    _check(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl NO_NEW_PRIVS")


def drop_bounding_capabilities(kept: int = 0) -> None:
    """Empty the capability bounding set but for a mask; needs CAP_SETPCAP."""
    for capability in range(LAST_CAPABILITY + 1):
        if kept >> capability & 1:
            continue
        if _libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0) < 0:
            break  # past the kernel's last capability


def keep_capabilities(mask: int) -> None:
    """Set effective and permitted to the mask, inheritable and ambient to nothing."""
    _libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    header = struct.pack("=Ii", _CAPABILITY_VERSION_3, 0)
    low, high = mask & 0xFFFF_FFFF, mask >> 32
    data = struct.pack("=IIIIII", low, low, 0, high, high, 0)
    _check(_libc.capset(ctypes.c_char_p(header), ctypes.c_char_p(data)), "capset")


def set_undumpable() -> None:
    """Keep this process's memory and descriptors out of reach of equals."""
    _check(_libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0), "prctl DUMPABLE")


def refuse_call(number: int, error: int) -> bytes:
    """Write a BPF filter that refuses one system call and lets every other one pass."""
    load_number = (0x20, 0, 0, 0)  # BPF_LD | BPF_W | BPF_ABS: seccomp_data.nr
    is_it = (0x15, 0, 1, number)  # BPF_JMP | BPF_JEQ | BPF_K
    refuse = (0x06, 0, 0, 0x0005_0000 | error)  # BPF_RET: SECCOMP_RET_ERRNO
    allow = (0x06, 0, 0, 0x7FFF_0000)  # BPF_RET: SECCOMP_RET_ALLOW
    return b"".join(
        struct.pack("=HBBI", *instruction) for instruction in (load_number, is_it, refuse, allow)
    )


def load_seccomp(program: bytes) -> None:
    """Install one compiled BPF filter; no_new_privs must be set."""
    buffer = ctypes.create_string_buffer(program, len(program))
    described = struct.pack("=HxxxxxxQ", len(program) // 8, ctypes.addressof(buffer))
    _syscall("seccomp", _SYS_SECCOMP, _SECCOMP_SET_MODE_FILTER, 0, ctypes.c_char_p(described))


RENAME_NOREPLACE = 0x1
RENAME_EXCHANGE = 0x2


def rename(old_directory: int, old: bytes, new_directory: int, new: bytes, flags: int = 0) -> None:
    """Rename between open directories: never over something, or swapping two names, as asked."""
    _check(
        _libc.renameat2(
            ctypes.c_int(old_directory),
            ctypes.c_char_p(old),
            ctypes.c_int(new_directory),
            ctypes.c_char_p(new),
            ctypes.c_uint(flags),
        ),
        "renameat2",
    )


def keep_capabilities_across_user_change() -> None:
    """Let the next change of user keep the permitted capabilities (the effective ones go)."""
    _check(_libc.prctl(_PR_SET_KEEPCAPS, 1, 0, 0, 0), "prctl KEEPCAPS")
