"""Secrets in the SDK: a value can be set, and never be asked for."""

from __future__ import annotations

from forkyard.client.connection import Connection
from forkyard.client.resources import part
from forkyard.errors import ConfigError
from forkyard.model.secret import NAME_RULE, is_secret_name
from forkyard.wire.bodies import Nothing
from forkyard.wire.secrets import KeyRotation, SecretInfo, SecretKept, SecretRequest


class Secrets:
    """All secrets of an installation."""

    def __init__(self, connection: Connection) -> None:
        """Keep the connection."""
        self._connection = connection

    async def set(self, name: str, value: str) -> SecretKept:
        """Keep a value under a name, in place of an earlier one; a running gateway uses it at once.

        Raises:
            ConfigError: Name or value cannot be taken; the message holds nothing of the value.
        """
        return await self._connection.ask(
            "PUT",
            _path(name),
            SecretKept,
            body=SecretRequest(value=_sendable(name, value)),
            may_repeat=True,
        )

    async def list(self) -> list[SecretInfo]:
        """List secrets by name."""
        return await self._connection.ask_list("/v1/secrets", SecretInfo)

    async def rotate_key(self) -> KeyRotation:
        """Seal every value with a new key; the old one is gone afterwards.

        Raises:
            StoreError: A value cannot be opened, and would be lost: nothing is changed.
        """
        return await self._connection.ask("POST", "/v1/secret-key", KeyRotation)

    async def delete(self, name: str) -> None:
        """Remove a secret."""
        await self._connection.ask("DELETE", _path(name), Nothing)


def _path(name: str) -> str:
    if not is_secret_name(name):
        # Neither told nor sent: a value may have been given in its place.
        raise ConfigError(f"cannot use that as a secret's name: a name is {NAME_RULE}")
    return f"/v1/secrets/{part(name)}"


def _sendable(name: str, value: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ConfigError(f"cannot set secret {name}: it is not UTF-8 text") from None
    return value
