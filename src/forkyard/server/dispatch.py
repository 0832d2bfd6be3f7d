"""The short way to a route: from the path's segments to its handler, past the framework.

A request of a few milliseconds should not spend one on being passed along. The rows are registered
with FastAPI, too, which describes them and answers whatever none of them takes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

Endpoint = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class _Target:
    segments: tuple[str, ...]
    endpoint: Endpoint

    def parameters(self, asked: list[str]) -> dict[str, str] | None:
        """Match segments of the same number; give what the braces stand for."""
        found: dict[str, str] = {}
        for ours, theirs in zip(self.segments, asked, strict=True):
            if ours.startswith("{"):
                if not theirs:
                    return None
                found[ours[1:-1]] = theirs
            elif ours != theirs:
                return None
        return found


class Dispatcher:
    """An ASGI application over the rows, with another one behind it for everything else."""

    def __init__(self, behind: ASGIApp) -> None:
        """Know no row yet."""
        self._behind = behind
        self._targets: dict[tuple[str, int], list[_Target]] = {}

    def add(self, method: str, path: str, endpoint: Endpoint) -> None:
        """Add a row; the first that matches is taken."""
        segments = tuple(path.split("/"))
        targets = self._targets.setdefault((method, len(segments)), [])
        targets.append(_Target(segments, endpoint))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] == "http":
            asked = scope["path"].split("/")
            for target in self._targets.get((scope["method"], len(asked)), ()):
                parameters = target.parameters(asked)
                if parameters is not None:
                    scope["path_params"] = parameters
                    response = await target.endpoint(Request(scope, receive, send))
                    await response(scope, receive, send)
                    return
        await self._behind(scope, receive, send)
