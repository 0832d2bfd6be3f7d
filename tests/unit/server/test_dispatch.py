"""From a path to its row; everything else goes to the framework behind."""

from __future__ import annotations

import pytest
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from forkyard.server.dispatch import Dispatcher

pytestmark = pytest.mark.anyio


async def behind(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer what no row takes."""
    await Response("behind")(scope, receive, send)


@pytest.mark.parametrize(
    ("method", "path", "told"),
    [
        ("GET", "/v1/things", "list {}"),
        ("GET", "/v1/things/a", "show {'id': 'a'}"),
        ("GET", "/v1/things/a b", "show {'id': 'a b'}"),
        ("POST", "/v1/things/a/stop", "stop {'id': 'a'}"),
        ("POST", "/v1/things", "behind"),
        ("GET", "/v1/things/", "behind"),
        ("GET", "/v1/things/a/", "behind"),
        ("GET", "/v1/things/a/stop", "behind"),
        ("GET", "/v2/things", "behind"),
        ("GET", "/", "behind"),
        ("GET", "", "behind"),
    ],
)
async def test_a_path_finds_its_row(method: str, path: str, told: str) -> None:
    """By method and segments; a parameter is one segment, never empty."""
    dispatcher = Dispatcher(behind)
    for row, name in (
        (("GET", "/v1/things"), "list"),
        (("GET", "/v1/things/{id}"), "show"),
        (("POST", "/v1/things/{id}/stop"), "stop"),
    ):

        async def endpoint(request: Request, name: str = name) -> Response:
            return Response(f"{name} {request.path_params}")

        dispatcher.add(*row, endpoint)
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    scope = {"type": "http", "method": method, "path": path, "headers": [], "query_string": b""}
    await dispatcher(scope, receive, send)

    assert b"".join(one.get("body", b"") for one in sent).decode() == told
