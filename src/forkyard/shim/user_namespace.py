"""Becoming root over one's own sub-ids: the user namespace that a rootless server lives in.

Two set-user-id programs of the system write its id maps, and check that the sub-ids are the
user's. Whoever enters has no thread yet. Namespaces of other processes of ours can be joined, so
that a new server stands where the sandboxes of the one before it stand.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NamedTuple, NoReturn

from forkyard.shim import kernel
from forkyard.shim.id_maps import SUB_ID_ROWS, own_map


class NamespaceError(Exception):
    """It could not be entered; the message is one clause for a person."""


class SubIds(NamedTuple):
    """First sub-ids of the user, and the programs that map them."""

    first_user: int
    first_group: int
    newuidmap: str
    newgidmap: str


def create(sub_ids: SubIds) -> None:
    """Make a user namespace, and be root in it.

    Raises:
        NamespaceError: The kernel or one of the programs refused.
    """
    user, group = os.geteuid(), os.getegid()
    made_read, made_write = os.pipe()
    told_read, told_write = os.pipe()
    target = os.getpid()
    helper = os.fork()
    if helper == 0:
        os.close(made_write)
        os.close(told_read)
        _map_when_made(target, sub_ids, (user, group), made_read, told_write)
    os.close(made_read)
    os.close(told_write)
    try:
        kernel.unshare(kernel.CLONE_NEWUSER)
        os.write(made_write, b"x")
    except OSError as error:
        raise NamespaceError(f"a user namespace: {os.strerror(error.errno or 0).lower()}") from None
    finally:
        os.close(made_write)
        with os.fdopen(told_read, "rb") as file:
            told = file.read().decode(errors="replace")
        os.waitpid(helper, 0)
    if told:
        raise NamespaceError(told)
    _be_root()


def join(pid: int) -> None:
    """Enter the user namespace of another process of ours.

    Raises:
        OSError: It is gone, or not ours.
    """
    descriptor = os.open(f"/proc/{pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    try:
        kernel.setns(descriptor, kernel.CLONE_NEWUSER)
    finally:
        os.close(descriptor)
    _be_root()


def find(number: str, uid_map: str) -> int | None:
    """Give a process that lives in the namespace of this number and with this map, if any does."""
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                if os.readlink(f"/proc/{name}/ns/user") != number:
                    continue
                with open(f"/proc/{name}/uid_map", encoding="ascii") as file:
                    if file.read().split() == uid_map.split():
                        return int(name)
            except OSError:
                continue
    return None


def number() -> str:
    """Name the user namespace that this process is in."""
    return os.readlink("/proc/self/ns/user")


def map_of(user: int, sub_ids: SubIds) -> str:
    """Give the user id map that `create` would make, as the user's own namespace shows it."""
    rows = _rows(user, sub_ids.first_user)
    return "\n".join(" ".join(map(str, row)) for row in rows)


def try_out(sub_ids: SubIds) -> str | None:
    """Enter one in a child, mount something in it, and say what was refused; None where nothing."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(read)
            create(sub_ids)
            kernel.unshare(kernel.CLONE_NEWNS)
            kernel.mount("none", "/", "", kernel.MS_REC | kernel.MS_PRIVATE)
            kernel.mount("tmpfs", "/mnt", "tmpfs", kernel.MS_NOSUID)
        except NamespaceError as error:
            os.write(write, str(error).encode())
        except OSError as error:
            words = os.strerror(error.errno or 0).lower()
            os.write(write, f"a mount in a user namespace: {words}".encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as file:
        told = file.read().decode(errors="replace")
    os.waitpid(child, 0)
    return told or None


def _rows(own: int, first: int) -> list[tuple[int, int, int]]:
    return [(0, own, 1), *((row.inside, first + row.outside, row.size) for row in SUB_ID_ROWS)]


def _map_when_made(
    target: int, sub_ids: SubIds, own: tuple[int, int], made: int, told: int
) -> NoReturn:
    """Be the helper, which stays outside: only there the programs have a say."""
    try:
        if os.read(made, 1) == b"x":
            pairs = (
                (sub_ids.newuidmap, _rows(own[0], sub_ids.first_user)),
                (sub_ids.newgidmap, _rows(own[1], sub_ids.first_group)),
            )
            for program, rows in pairs:
                numbers = [str(number) for row in rows for number in row]
                words = _run([program, str(target), *numbers])
                if words is not None:
                    os.write(told, f"{os.path.basename(program)}: {words}".encode())
                    break
    except OSError as error:
        os.write(told, f"the id maps: {os.strerror(error.errno or 0).lower()}".encode())
    finally:
        os._exit(0)


def _run(argv: Sequence[str]) -> str | None:
    """Run a program; None where it succeeded, else what it printed."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.dup2(write, 2)
            kernel.close_from(3)
            os.execve(argv[0], list(argv), {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"})
        finally:
            os._exit(127)
    os.close(write)
    with os.fdopen(read, "rb") as file:
        printed = file.read(4096).decode(errors="replace")
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    if code == 0:
        return None
    return " ".join(printed.split())[-300:] or f"it ended with status {code}"


def _be_root() -> None:
    os.setresgid(0, 0, 0)
    os.setresuid(0, 0, 0)


def is_inside() -> bool:
    """Say whether this process is root over sub-ids already."""
    rows = [tuple(map(int, line.split())) for line in own_map().splitlines()]
    wanted = [(row.inside, row.size) for row in SUB_ID_ROWS]
    covered = sum(
        1
        for inside, size in [(0, 1), *wanted]
        if any(row[0] <= inside and inside + size <= row[0] + row[2] for row in rows)
    )
    return os.geteuid() == 0 and covered == len(wanted) + 1
