"""An image whose layers are here, so that the next build of a template pulls nothing."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from forkyard.model.ids import ImageId, LayerId


class ImageState(StrEnum):
    """An image may be used when ready; one that is gone is forgotten."""

    PENDING = "pending"
    READY = "ready"
    GONE = "gone"


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """What is known of one image, and the layers that are its root file system."""

    id: ImageId
    digest: str
    """Of its manifest, such as ``sha256:...``."""
    reference: str
    """By which it was asked for last."""
    state: ImageState
    layers: tuple[LayerId, ...]
    """Topmost first."""
    used_at: str
    variables: dict[str, str] = field(default_factory=dict)
    """What its configuration says of the environment."""
