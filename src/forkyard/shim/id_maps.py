"""Which user ids own what, as root and rootless.

As root, storage and each workspace have private ranges of the machine's ids. Rootless, all of us
runs in one user namespace where id 0 is the ordinary user and everything else a sub-id of his:
all sandboxes share one range, none of whose ids is the user's own or the gateway's.
"""

from __future__ import annotations

from typing import NamedTuple

RANGE_SIZE = 65536
OVERFLOW_ID = 65534
"""As whom the kernel shows an id that a namespace has not."""

USER_ID = 1000
"""Of the workspace's user inside."""


class Extent(NamedTuple):
    """One row of an id map."""

    inside: int
    outside: int
    size: int


SUB_IDS = 65536
"""How many of them an ordinary user must have."""
_BELOW_OVERFLOW = OVERFLOW_ID - 1
SUB_ID_ROWS = (
    Extent(1, 0, _BELOW_OVERFLOW),
    Extent(OVERFLOW_ID + 1, _BELOW_OVERFLOW, SUB_IDS - _BELOW_OVERFLOW),
)
"""Where the sub-ids (`outside` counted from the first of them) appear in our user namespace. The
id that the kernel shows for strangers is left out, so that a stranger is never taken for one."""


class Ids(NamedTuple):
    """The ids of one mode; as the namespace that the server runs in numbers them."""

    is_rootless: bool
    storage: tuple[Extent, ...]
    """Of whom files on disk are, by the id that a sandbox knows their owner by."""
    first_slot: int
    slots: int
    gateway: int
    cloner: int
    """Runs git on addresses; owns nothing but the folder that it fills."""
    puller: int
    """Fetches images. Not the cloner where there are ids enough: what a hostile repository makes
    of git must not read a registry's password."""
    egress: int
    """Runs the allowlist's proxy; owns nothing but its records."""
    nobody: int
    """Reads what is hostile and owns nothing."""

    def storage_id(self, inside: int) -> int:
        """Say who owns on disk what belongs to this id inside a sandbox.

        Raises:
            ValueError: No sandbox has such an id.
        """
        return _outside(self.storage, inside)

    def sandbox(self, slot: int) -> tuple[Extent, ...]:
        """Give the id map of the container in a slot."""
        if self.is_rootless:
            return self.storage
        return (Extent(0, self.first_slot + slot * RANGE_SIZE, RANGE_SIZE),)

    def sandbox_id(self, slot: int, inside: int) -> int:
        """Say as whom a process or view of the sandbox in a slot appears out here."""
        return _outside(self.sandbox(slot), inside)

    def mount_map(self, slot: int) -> str | None:
        """Give the map of id-mapped mounts; None where files are shown as they are on disk.

        Without its first row overlayfs mounts read-only silently.
        """
        if self.is_rootless:
            return None
        rows = zip(self.storage, self.sandbox(slot), strict=True)
        return "0 0 1\n" + "".join(
            f"{disk.outside} {shown.outside} {disk.size}\n" for disk, shown in rows
        )


def _outside(rows: tuple[Extent, ...], inside: int) -> int:
    for row in rows:
        if row.inside <= inside < row.inside + row.size:
            return row.outside + inside - row.inside
    raise ValueError(inside)


_STORAGE = 0x7000_0000
_SLOTS = 4000
_FIRST_SLOT = _STORAGE + RANGE_SIZE
_ABOVE_SLOTS = _FIRST_SLOT + _SLOTS * RANGE_SIZE

ROOT = Ids(
    is_rootless=False,
    # Above the ranges that systemd and subordinate-id tools hand out.
    storage=(Extent(0, _STORAGE, RANGE_SIZE),),
    first_slot=_FIRST_SLOT,
    slots=_SLOTS,
    gateway=_ABOVE_SLOTS,
    cloner=_ABOVE_SLOTS + 1,
    puller=_ABOVE_SLOTS + 2,
    egress=_ABOVE_SLOTS + 3,
    nobody=OVERFLOW_ID,
)
ROOTLESS = Ids(
    is_rootless=True,
    storage=(Extent(0, 1, _BELOW_OVERFLOW), Extent(OVERFLOW_ID, OVERFLOW_ID + 1, 1)),
    first_slot=1,
    slots=_SLOTS,
    gateway=OVERFLOW_ID + 2,
    cloner=OVERFLOW_ID + 3,
    puller=OVERFLOW_ID + 3,
    egress=OVERFLOW_ID + 3,
    nobody=OVERFLOW_ID + 3,  # 65536 sub-ids have no room for one more
)


def is_initial(uid_map: str) -> bool:
    """Say whether this is the map of the machine's own user namespace."""
    return [line.split() for line in uid_map.splitlines()] == [["0", "0", "4294967295"]]


def ids_of(uid_map: str) -> Ids:
    """Decide by the text of /proc/self/uid_map."""
    return ROOT if is_initial(uid_map) else ROOTLESS


def own_map() -> str:
    """Read the id map of this process."""
    with open("/proc/self/uid_map", encoding="ascii") as file:
        return file.read()
