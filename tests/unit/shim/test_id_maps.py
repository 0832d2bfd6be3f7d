"""Which ids own what in both modes."""

from __future__ import annotations

import pytest

from forkyard.model.workspace import USER_ID
from forkyard.shim import id_maps
from forkyard.shim.id_maps import OVERFLOW_ID, ROOT, ROOTLESS, SUB_ID_ROWS, SUB_IDS, Extent


def numbers(rows: tuple[Extent, ...]) -> set[int]:
    """List the ids out here that a map gives to a sandbox."""
    return {row.outside + step for row in rows for step in range(row.size)}


def test_mode_is_root_when_the_map_is_the_machines_own() -> None:
    """Any other map means that somebody entered a namespace."""
    assert id_maps.ids_of("         0          0 4294967295\n") is ROOT
    assert id_maps.ids_of("0 1000 1\n1 100000 65536\n") is ROOTLESS


def test_no_sandbox_has_the_id_of_the_user_or_of_a_helper_of_ours() -> None:
    """Neither the user, nor who is unknown, nor the gateway is in a rootless sandbox's range."""
    inside = numbers(ROOTLESS.sandbox(0))

    ours = {0, OVERFLOW_ID, ROOTLESS.gateway, ROOTLESS.cloner, ROOTLESS.nobody}
    assert inside.isdisjoint(ours)
    for slot in (0, 1, ROOT.slots - 1):
        assert numbers(ROOT.sandbox(slot)).isdisjoint({0, ROOT.gateway, ROOT.cloner, ROOT.nobody})


def test_every_rootless_id_is_mapped_and_all_sub_ids_are_used() -> None:
    """What a sandbox or a helper of ours is, exists in our namespace; strangers do not."""
    mapped = {row.inside + step for row in SUB_ID_ROWS for step in range(row.size)}

    assert len(mapped) == SUB_IDS
    assert {row.outside for row in SUB_ID_ROWS} == {0, SUB_ID_ROWS[0].size}
    assert numbers(ROOTLESS.storage) | {ROOTLESS.gateway, ROOTLESS.cloner} == mapped
    assert OVERFLOW_ID not in mapped


@pytest.mark.parametrize("inside", [0, USER_ID, 65532, OVERFLOW_ID])
def test_an_owner_inside_is_the_same_on_disk_and_in_the_sandbox_when_rootless(inside: int) -> None:
    """There is no mapping at mount time, so both must agree."""
    assert ROOTLESS.storage_id(inside) == ROOTLESS.sandbox_id(3, inside)


def test_an_id_that_no_sandbox_has_is_refused() -> None:
    """Nothing is given to an owner by accident."""
    with pytest.raises(ValueError, match="65533"):
        ROOTLESS.storage_id(65533)


def test_mounts_are_mapped_as_root_alone() -> None:
    """The first row keeps overlayfs from mounting read-only."""
    assert ROOTLESS.mount_map(0) is None
    assert (ROOT.mount_map(1) or "").splitlines()[0] == "0 0 1"


def test_the_users_id_is_the_one_of_the_model() -> None:
    """The shim imports no model, so the number stands in two places."""
    assert id_maps.USER_ID == USER_ID
