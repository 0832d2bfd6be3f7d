"""Who is in a workspace through this server just now: attached terminals, connections to ports."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from forkyard.model.ids import WorkspaceId


class Presence:
    """Counts them. Used from one event loop."""

    def __init__(self) -> None:
        """Start with nobody."""
        self._there: Counter[WorkspaceId] = Counter()

    def hold(self, workspace: WorkspaceId) -> Callable[[], None]:
        """Count somebody in; what is given back counts them out, once."""
        self._there[workspace] += 1
        left = False

        def release() -> None:
            nonlocal left
            if not left:
                left = True
                self._there[workspace] -= 1
                if not self._there[workspace]:
                    del self._there[workspace]

        return release

    def is_anybody_in(self, workspace: WorkspaceId) -> bool:
        """Say whether somebody is attached to it or connected into it."""
        return self._there[workspace] > 0
