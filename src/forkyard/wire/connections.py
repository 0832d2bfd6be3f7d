"""What a workspace with an allowlist connected to, as JSON."""

from __future__ import annotations

from pydantic import Field

from forkyard.wire.bodies import AnswerModel, Text


class ConnectionInfo(AnswerModel):
    """One connection, or an attempt at one."""

    at: str
    host: Text
    port: int
    outcome: str
    """`open`, `closed`, `refused`, `failed` or `cut`."""
    reason: Text = ""
    address: Text | None = None
    sent_bytes: int = 0
    received_bytes: int = 0


class ConnectionCountInfo(AnswerModel):
    """Connections past those that are listed one by one."""

    host: Text
    """`*`: all hosts that are not counted by themselves."""
    port: int
    outcome: str
    count: int
    sent_bytes: int = 0
    received_bytes: int = 0


class ConnectionsInfo(AnswerModel):
    """All connections of one workspace."""

    workspace: str | None
    network: str
    allow: list[Text] = Field(default_factory=list)
    total: int = 0
    listed: list[ConnectionInfo] = Field(default_factory=list)
    counted: list[ConnectionCountInfo] = Field(default_factory=list)
