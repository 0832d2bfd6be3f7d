"""Routes of secrets, and what happens when one changes: masks first, then the disk, then others."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from forkyard.base.masking import Masker
from forkyard.errors import ConfigError, ForkyardError, StoreError
from forkyard.model.secret import Secret
from forkyard.server.table import Call
from forkyard.store.secrets import Secrets
from forkyard.wire.bodies import Nothing
from forkyard.wire.secrets import KeyRotation, SecretInfo, SecretKept, SecretRequest

TELL_SECONDS = 10.0
"""Whoever must hear of a change and does not by then hears of it when it next asks."""

_LOG = logging.getLogger("forkyard.server")


class SecretKeeper:
    """Implements `SecretService`: one change at a time."""

    def __init__(
        self,
        store: Secrets,
        masker: Masker,
        on_change: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """Keep the parts.

        Args:
            store: Where secrets lie.
            masker: Learns every value before anybody else gets it.
            on_change: Awaited after each change; what goes wrong there does not undo the change.
        """
        self._store = store
        self._masker = masker
        self._on_change = on_change
        self._lock = asyncio.Lock()

    async def load(self) -> None:
        """Mask what is there; call it before any output is shown or kept."""
        try:
            await asyncio.to_thread(self._store.finish_rotation)
        except StoreError as error:
            _LOG.warning("A change of the secrets' key is not at its end: %s", error.message)
        self._masker.replace(await asyncio.to_thread(self._store.values))

    async def set(self, name: str, value: str) -> tuple[Secret, tuple[str, ...]]:
        """Keep a value; see `Secrets.set`. Gives what keeps the gateway from using it, too."""
        async with self._lock:
            row = await asyncio.to_thread(self._store.set, name, value)
            self._masker.replace({name: value})
            return row, await self._tell()

    async def list(self) -> tuple[Secret, ...]:
        """List secrets; see `Secrets.list`."""
        return await asyncio.to_thread(self._store.list)

    async def delete(self, name: str) -> None:
        """Remove a secret; see `Secrets.delete`. Its value is masked until the server ends."""
        async with self._lock:
            await asyncio.to_thread(self._store.delete, name)
            await self._tell()

    async def rotate_key(self) -> int:
        """Seal every value with a new key; see `Secrets.rotate_key`."""
        async with self._lock:
            return await asyncio.to_thread(self._store.rotate_key)

    async def _tell(self) -> tuple[str, ...]:
        if self._on_change is None:
            return ()
        try:
            async with asyncio.timeout(TELL_SECONDS):
                await self._on_change()
        except (ForkyardError, OSError) as error:
            _LOG.warning("A changed secret is not told yet: %s", type(error).__name__)
            if isinstance(error, ConfigError):
                return (error.message, *(str(one) for one in error.problems))
            return ("the gateway could not be told of it yet",)
        return ()


async def set_secret(call: Call) -> SecretKept:
    """Keep a value under a name."""
    value = call.asked(SecretRequest).value
    row, warnings = await call.services.secrets.set(call.parameters["name"], value)
    return SecretKept.model_validate(row).model_copy(update={"warnings": list(warnings)})


async def rotate_key(call: Call) -> KeyRotation:
    """Seal every value with a new key."""
    return KeyRotation(secrets=await call.services.secrets.rotate_key())


async def list_secrets(call: Call) -> list[SecretInfo]:
    """List secrets by name."""
    return [SecretInfo.model_validate(row) for row in await call.services.secrets.list()]


async def delete_secret(call: Call) -> Nothing:
    """Remove a secret."""
    await call.services.secrets.delete(call.parameters["name"])
    return Nothing()
