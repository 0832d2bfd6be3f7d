"""What happens when a secret changes: kept, masked, told; trouble in telling undoes nothing."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from forkyard.base.clock import SystemClock
from forkyard.base.masking import Masker
from forkyard.errors import ConfigError, GatewayError, NotFoundError, Problem
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


def test_problems_of_the_settings_are_told_when_a_secret_is_set(tmp_path: Path) -> None:
    """It is kept all the same; whoever sets it learns why it cannot be used."""
    problem = Problem(message="not a price", file="gateway.yaml", line=3, key="prices.0.input")

    async def on_change() -> None:
        raise ConfigError("cannot use gateway.yaml: 1 problem", problems=(problem,))

    store = Secrets(tmp_path, SystemClock())
    _, warnings = asyncio.run(SecretKeeper(store, Masker(), on_change).set("KEY", VALUE))

    assert warnings == (
        "cannot use gateway.yaml: 1 problem",
        "gateway.yaml:3: prices.0.input: not a price",
    )
    assert store.values() == {"KEY": VALUE}


def test_change_of_the_key_is_ended_when_a_server_starts(tmp_path: Path) -> None:
    """One that was cut short is taken up before anything is masked."""
    store, masker = Secrets(tmp_path, SystemClock()), Masker()
    store.set("KEY", VALUE)
    (tmp_path / "key.new").write_bytes(b"k" * 32)
    (tmp_path / "key.new").chmod(0o600)

    asyncio.run(SecretKeeper(store, masker).load())

    assert (tmp_path / "key").read_bytes() == b"k" * 32
    assert not (tmp_path / "key.new").exists()
    assert masker.mask_text(VALUE) == "[secret KEY]"
