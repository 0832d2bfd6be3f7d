"""What an ordinary user's server needs of the machine, and entering where it lives.

Whatever is missing is told all at once, each with the exact switch or command. Nothing is
imported here that depends on the namespace: the server decides by where it is who owns what.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import stat
from dataclasses import dataclass
from pathlib import Path

from forkyard.base.durable import write_file
from forkyard.config import Layout, search_path
from forkyard.errors import SandboxUnavailableError
from forkyard.shim import delegation, user_namespace
from forkyard.shim.id_maps import SUB_IDS, is_initial, own_map
from forkyard.shim.user_namespace import NamespaceError, SubIds

OLDEST_KERNEL = (5, 13)
"""The first in which overlayfs keeps its marks in `user.` attributes reliably."""
MAPPERS = ("newuidmap", "newgidmap")
SYSTEM_PATH = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
_SWITCHES = (
    ("kernel.unprivileged_userns_clone", "0", "1"),
    ("user.max_user_namespaces", "0", "15000"),
)
"""Settings with the value that forbids, and one that allows."""
_APPARMOR = "kernel.apparmor_restrict_unprivileged_userns"


@dataclass(frozen=True, slots=True, kw_only=True)
class Missing:
    """One thing that this machine lacks or forbids, and what changes it."""

    reason: str
    remedy: str

    def __str__(self) -> str:
        """Give both as one line."""
        return f"{self.reason}; {self.remedy[0].lower()}{self.remedy[1:].rstrip('.')}"


def is_needed() -> bool:
    """Say whether a server started by this process must enter a namespace first."""
    return os.geteuid() != 0


def missing(*, really: bool) -> tuple[Missing, ...]:
    """Say what keeps an ordinary user from isolating anything here.

    Args:
        really: Whether to make a user namespace, too, where nothing else is found.
    """
    if not is_needed():
        return ()
    found = [*_kernel(), *_mappers(), *_sub_ids(), *_switches()]
    if not found and really:
        said = user_namespace.try_out(_find_sub_ids())
        if said is not None:
            found.append(_explain(said))
    return tuple(found)


def refuse_where_missing() -> None:
    """Do nothing where a rootless server can run as far as files tell.

    Raises:
        SandboxUnavailableError: With everything that is missing.
    """
    found = missing(really=False)
    if found:
        raise _refusal(found)


def enter(home: Path) -> None:
    """Be root over our own sub-ids from here on; as root of the machine nothing changes.

    Where processes of an earlier server of this state directory still live, theirs is the
    namespace that is entered: only from there they can be told from strangers.

    Args:
        home: The state directory.

    Raises:
        SandboxUnavailableError: The machine lacks or forbids something; each thing is named.
    """
    if not is_needed():
        if not is_initial(own_map()) and not user_namespace.is_inside():
            raise SandboxUnavailableError(
                "cannot be root in this user namespace: it has not the ids 0 to 65537",
                hint="Run forkyard outside it, as an ordinary user or as the machine's root.",
            )
        return
    refuse_where_missing()
    stand_aside()
    sub_ids = _find_sub_ids()
    if _join_earlier(Layout(home), sub_ids):
        return
    try:
        user_namespace.create(sub_ids)
    except NamespaceError as error:
        raise _refusal((_explain(str(error)),)) from None


def remember(layout: Layout) -> None:
    """Write down which namespace this server is in; to be called while the state is locked."""
    write_file(layout.namespace, f"{user_namespace.number()}\n".encode())


def stand_aside() -> None:
    """Make room for sandboxes in a cgroup that was delegated to us, if one was.

    Who starts a server does so first: a group hands on nothing while any process is in it.
    """
    if not is_needed():
        return
    with contextlib.suppress(OSError):
        if Path("/sys/fs/cgroup/cgroup.controllers").exists():
            own = Path("/proc/self/cgroup").read_text(encoding="utf-8", errors="surrogateescape")
            delegation.stand_aside("/sys/fs/cgroup", delegation.own_groups(own))


def _join_earlier(layout: Layout, sub_ids: SubIds) -> bool:
    try:
        number = layout.namespace.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return False
    wanted = user_namespace.map_of(os.geteuid(), sub_ids)
    for _ in range(3):  # whom we found may end before we are there
        pid = user_namespace.find(number, wanted)
        if pid is None:
            return False
        with contextlib.suppress(OSError):
            user_namespace.join(pid)
            return True
    return False


def _refusal(found: tuple[Missing, ...]) -> SandboxUnavailableError:
    name = _user_name()
    return SandboxUnavailableError(
        f"cannot isolate anything as user {name}: {'; '.join(one.reason for one in found)}",
        hint=found[0].remedy if len(found) == 1 else "Run `forkyard doctor`: it names each remedy.",
    )


def _kernel() -> list[Missing]:
    release = os.uname().release
    numbers = release.split("-")[0].split(".")
    try:
        version = (int(numbers[0]), int(numbers[1]))
    except (ValueError, IndexError):
        return []
    if version >= OLDEST_KERNEL:
        return []
    return [
        Missing(
            reason=f"the kernel is {release}, and without root 5.13 is the oldest that will do",
            remedy="Use a newer kernel, or run forkyard as root (5.19 or newer).",
        )
    ]


def _mappers() -> list[Missing]:
    found = []
    for name in MAPPERS:
        path = _find_program(name)
        if path is None:
            found.append(
                Missing(
                    reason=f"{name} is not installed",
                    remedy="Install the package uidmap (`apt-get install uidmap`).",
                )
            )
        elif not _may_map(path):
            found.append(
                Missing(
                    reason=f"{path} is neither set-user-id root nor has the capability to map ids",
                    remedy="Reinstall the package uidmap.",
                )
            )
    return found


def _find_program(name: str) -> str | None:
    return shutil.which(name, path=f"{SYSTEM_PATH}:{search_path()}")


def _may_map(path: str) -> bool:
    facts = Path(path).stat()
    if facts.st_mode & stat.S_ISUID and facts.st_uid == 0:
        return True
    with contextlib.suppress(OSError):
        return bool(os.getxattr(path, "security.capability"))
    return False


def _sub_ids() -> list[Missing]:
    found = []
    for file, option in (("/etc/subuid", "--add-subuids"), ("/etc/subgid", "--add-subgids")):
        if _first_sub_id(file) is None:
            name = _user_name()
            found.append(
                Missing(
                    reason=f"{file} gives user {name} no range of {SUB_IDS} sub-ids",
                    remedy=f"Run `usermod {option} 100000-165535 {name}` as root, with a range"
                    " that nobody else has.",
                )
            )
    return found


def _first_sub_id(file: str) -> int | None:
    """Give where the user's first range that is large enough begins."""
    names = {_user_name(), str(os.getuid())}
    try:
        lines = Path(file).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    for line in lines:
        name, _, rest = line.strip().partition(":")
        first, _, count = rest.partition(":")
        if name in names and first.isdigit() and count.isdigit() and int(count) >= SUB_IDS:
            return int(first)
    return None


def _user_name() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def _switches() -> list[Missing]:
    return [
        Missing(
            reason=f"{name} is {forbidding}, which forbids user namespaces",
            remedy=f"Run `sysctl -w {name}={allowing}` as root.",
        )
        for name, forbidding, allowing in _SWITCHES
        if _setting(name) == forbidding
    ]


def _setting(name: str) -> str | None:
    try:
        return Path("/proc/sys", *name.split(".")).read_text(encoding="ascii").strip()
    except OSError:
        return None


def _find_sub_ids() -> SubIds:
    user, group = _first_sub_id("/etc/subuid"), _first_sub_id("/etc/subgid")
    programs = [_find_program(name) for name in MAPPERS]
    assert user is not None  # noqa: S101 - asked after `missing` found nothing
    assert group is not None  # noqa: S101 - as above
    return SubIds(user, group, programs[0] or "", programs[1] or "")


def _explain(said: str) -> Missing:
    """Name the switch behind what the kernel refused."""
    if _setting(_APPARMOR) == "1":
        return Missing(
            reason=f"{_APPARMOR} is 1, and AppArmor refuses {said}",
            remedy=f"Run `sysctl -w {_APPARMOR}=0` as root, or give this Python an AppArmor"
            " profile that allows `userns`.",
        )
    if _forbids_new_privileges():
        return Missing(
            reason=f"this session may gain no privileges (no_new_privs), which newuidmap needs:"
            f" {said}",
            remedy="Start forkyard from a session without no_new_privs.",
        )
    return Missing(
        reason=f"the kernel refuses {said}",
        remedy="Look for a security module, a container around us or a filter that forbids it.",
    )


def _forbids_new_privileges() -> bool:
    with contextlib.suppress(OSError):
        return "NoNewPrivs:\t1" in Path("/proc/self/status").read_text(encoding="utf-8")
    return False
