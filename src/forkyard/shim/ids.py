"""The ids that are in force, decided once by the user namespace that this process runs in.

To be imported only where that is settled: a rootless server enters its namespace before.
"""

from __future__ import annotations

from forkyard.shim.id_maps import USER_ID, ids_of, own_map

IDS = ids_of(own_map())
STORAGE_FIRST_ID = IDS.storage_id(0)
"""Owner of what belongs to a sandbox's root, on disk."""
STORAGE_USER_ID = IDS.storage_id(USER_ID)
"""Owner of what belongs to a workspace's user, on disk."""
GATEWAY_USER_ID = IDS.gateway
CLONER_USER_ID = IDS.cloner
PULLER_USER_ID = IDS.puller
EGRESS_USER_ID = IDS.egress
MARKS = "user.overlay." if IDS.is_rootless else "trusted.overlay."
"""Where overlayfs keeps its own attributes."""
REAL_USER_ID = next(
    (int(row[1]) for line in own_map().splitlines() if (row := line.split())[0] == "0"), 0
)
"""Who id 0 is outside: the ordinary user, where we are rootless."""
