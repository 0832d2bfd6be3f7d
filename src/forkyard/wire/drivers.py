"""What server and client say to each other about agents' drivers and their installation."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from forkyard.wire.bodies import AnswerModel, RequestModel, Text


class DriverInfo(AnswerModel):
    """One way to run an agent."""

    name: str
    summary: str
    version: str | None = None
    """As it is pinned; null: it is the user's own command."""
    provider: str | None = None
    """Whom it talks to where an agent names nobody."""
    model: str | None = None
    """What it uses where an agent names none."""
    installed: bool | None = None
    """null: there is nothing to install."""


class ArchiveInfo(AnswerModel):
    """One published archive that an agent is installed from."""

    registry: str
    name: str
    version: str
    file: str
    sha512: str


class DriverReport(DriverInfo):
    """How it stands with one agent's installation."""

    folder: Text | None = None
    """Where it is installed."""
    archives: list[ArchiveInfo] = []
    needs: str = ""
    """What it needs of the image."""
    problems: list[Text] = []
    notes: list[Text] = []


class InstallProgress(AnswerModel):
    """How the installation of an agent goes."""

    doing: Text | None = None
    """Which archive is fetched, what is unpacked; None: nothing is being done."""
    size_bytes: int = 0
    """On disk so far."""


class InstallRequest(RequestModel):
    """Install an agent."""

    source: Annotated[str, Field(pattern=r"^/")] | None = None
    """Folder of its archives; null: they are fetched."""
    variables: dict[str, str] = {}
    """What the caller's environment says of package registries."""
