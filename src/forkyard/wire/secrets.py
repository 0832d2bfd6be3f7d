"""What server and client say to each other about secrets. A value travels in one direction only."""

from __future__ import annotations

from pydantic import Field

from forkyard.wire.bodies import AnswerModel, RequestModel, Text


class SecretRequest(RequestModel):
    """Keep a value under the name in the path, in place of an earlier one."""

    value: str = Field(repr=False)
    """UTF-8 text of 8 to 16,384 bytes without NUL. No answer, log or journal entry holds it."""


class SecretInfo(AnswerModel):
    """Everything that is told about a secret; nothing here is derived from its value."""

    name: str
    id: str = ""
    """Random, and new with each value."""
    set_at: str = ""
    trouble: Text | None = None
    """Why its value cannot be read, where that is so."""


class SecretKept(SecretInfo):
    """A secret that was set just now."""

    warnings: list[Text] = Field(default_factory=list)
    """Why the gateway cannot use it yet."""


class KeyRotation(AnswerModel):
    """All values are sealed with a new key."""

    secrets: int
    """How many."""
