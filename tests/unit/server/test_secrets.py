"""What happens when a secret changes: kept, masked, told; trouble in telling undoes nothing."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from forkyard.base.clock import SystemClock
from forkyard.base.masking import Masker
from forkyard.errors import ConfigError, GatewayError, NotFoundError
from forkyard.server.secrets import SecretKeeper
from forkyard.store.secrets import Secrets

VALUE = "sk-test-0123456789"


def test_change_is_masked_and_told_when_it_is_on_disk(tmp_path: Path) -> None:
    """Whoever is told of a change finds the value on disk and in the masker."""
    store, masker = Secrets(tmp_path, SystemClock()), Masker()
    told: list[tuple[dict[str, str], str]] = []

    async def on_change() -> None:
        told.append((store.values(), masker.mask_text(VALUE)))

    async def change() -> None:
        keeper = SecretKeeper(store, masker, on_change)
        await keeper.set("KEY", VALUE)
        await keeper.delete("KEY")
        with pytest.raises(NotFoundError):
            await keeper.delete("KEY")
        with pytest.raises(ConfigError):
            await keeper.set("KEY", "short")

    asyncio.run(change())

    # A deleted value is masked on: what was printed before is still being read.
    assert told == [({"KEY": VALUE}, "[secret KEY]"), ({}, "[secret KEY]")]


def test_secret_is_kept_when_the_gateway_cannot_be_told(tmp_path: Path) -> None:
    """It hears of it when it next asks."""
    store = Secrets(tmp_path, SystemClock())

    async def on_change() -> None:
        raise GatewayError("cannot ask the gateway: it is gone")

    asyncio.run(SecretKeeper(store, Masker(), on_change).set("KEY", VALUE))

    assert store.values() == {"KEY": VALUE}


def test_secrets_of_an_earlier_server_are_masked_when_it_has_loaded(tmp_path: Path) -> None:
    """A restart masks what was set before it."""
    store, masker = Secrets(tmp_path, SystemClock()), Masker()
    store.set("KEY", VALUE)

    asyncio.run(SecretKeeper(store, masker).load())

    assert masker.mask_text(f"<{VALUE}>") == "<[secret KEY]>"
