"""FastAPI over the table: one way in for every request, one shape out for every error."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import TypeAdapter
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from forkyard import __version__
from forkyard.errors import (
    ConfigError,
    ForkyardError,
    InternalError,
    NotFoundError,
    StoreError,
)
from forkyard.server.dispatch import Dispatcher
from forkyard.server.routes import ROUTES
from forkyard.server.services import Services
from forkyard.server.table import Call, Route, read_body, to_bytes
from forkyard.wire.errors import ErrorBody, to_wire

MOST_BODY_BYTES = 8 * 1024**2
"""Task files and prompts are small; more is a mistake or an attack on memory."""

NO_SPACE = 28
_LOG = logging.getLogger("forkyard.server")


def build_app(services: Services) -> Dispatcher:
    """Make the application that serves every route of the table."""
    app = FastAPI(
        title="Forkyard",
        version=__version__,
        openapi_url="/v1/openapi.json",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    dispatcher = Dispatcher(app)
    for route in ROUTES:
        endpoint = _endpoint(route, services)
        dispatcher.add(route.method, route.path, endpoint)
        app.add_api_route(
            route.path,
            endpoint,
            methods=[route.method],
            response_model=None,
            status_code=route.status,
            summary=route.summary,
            operation_id=route.operation,
        )
    app.add_exception_handler(HTTPException, _unrouted)
    app.openapi = lambda: describe(app)  # type: ignore[method-assign]
    return dispatcher


def _endpoint(route: Route, services: Services) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        try:
            body = None
            if route.takes is not None:
                body = read_body(route.takes, await _read(request))
            answer = await route.handler(
                Call(
                    services=services,
                    parameters=request.path_params,
                    query=request.query_params,
                    body=body,
                    request=request,
                )
            )
        except ForkyardError as error:
            return error_response(error)
        except Exception as error:  # noqa: BLE001 - the boundary: a bug becomes an answer
            return error_response(_unexpected(error, route))
        if isinstance(answer, Response):
            return answer
        return Response(to_bytes(answer), route.status, media_type="application/json")

    endpoint.__doc__ = route.summary
    return endpoint


async def _read(request: Request) -> bytes:
    parts: list[bytes] = []
    size = 0
    async for part in request.stream():
        size += len(part)
        if size > MOST_BODY_BYTES:
            raise ConfigError(
                f"cannot read the request: its body is over {MOST_BODY_BYTES >> 20} MiB"
            )
        parts.append(part)
    return b"".join(parts)


def _unexpected(error: Exception, route: Route) -> ForkyardError:
    if isinstance(error, OSError) and error.errno == NO_SPACE:
        return StoreError(
            "cannot write below the state directory: the disk is full",
            hint="Free space, or remove what is not needed with `forkyard gc`.",
        )
    _LOG.error("Bug in %s %s", route.method, route.path, exc_info=error)
    return InternalError(
        f"cannot answer {route.method} {route.path}: {type(error).__name__} in the server",
        hint="Report it with the end of server.log in the state directory.",
    )


def error_response(error: ForkyardError) -> Response:
    """Write an error in its one shape."""
    body = to_wire(error).model_dump_json().encode()
    return Response(body, error.http_status, media_type="application/json")


async def _unrouted(request: Request, error: Exception) -> Response:
    """Answer what no route takes in the same shape as everything else."""
    status = error.status_code if isinstance(error, HTTPException) else 500
    path = request.url.path
    if status == 405:  # noqa: PLR2004 - HTTP: method not allowed
        reason = f"cannot {request.method} {path}: the path takes other methods"
    else:
        reason = f"cannot find {path}: no such route"
    response = error_response(NotFoundError(reason, hint="See /v1/openapi.json for the routes."))
    response.status_code = status
    return response


def describe(app: FastAPI) -> dict[str, Any]:
    """Describe the API: FastAPI's frame, with the table's requests and answers in it."""
    if app.openapi_schema:
        return app.openapi_schema
    document = get_openapi(title=app.title, version=app.version, routes=app.routes)
    adapters: list[tuple[object, Any, TypeAdapter[Any]]] = [
        ("error", "serialization", TypeAdapter(ErrorBody))
    ]
    for route in ROUTES:
        if not isinstance(route.answers, str):
            adapters.append(
                (f"{route.operation}:out", "serialization", TypeAdapter[Any](route.answers))
            )
        if route.takes is not None:
            adapters.append((f"{route.operation}:in", "validation", TypeAdapter(route.takes)))
    references, definitions = TypeAdapter.json_schemas(
        adapters, ref_template="#/components/schemas/{model}"
    )
    document.setdefault("components", {})["schemas"] = definitions.get("$defs", {})
    for route in ROUTES:
        _describe_route(document["paths"][route.path][route.method.lower()], route, references)
    app.openapi_schema = document
    return document


def _describe_route(operation: dict[str, Any], route: Route, references: Any) -> None:  # noqa: ANN401 - pydantic's own map
    if isinstance(route.answers, str):
        content: dict[str, Any] = {route.answers: {"schema": {"type": "string"}}}
    else:
        schema = references[(f"{route.operation}:out", "serialization")]
        content = {"application/json": {"schema": schema}}
    operation["responses"] = {
        str(route.status): {"description": "Done", "content": content},
        "default": {
            "description": "Not done",
            "content": {"application/json": {"schema": references[("error", "serialization")]}},
        },
    }
    if route.takes is not None:
        operation["requestBody"] = {
            "required": True,
            "content": {
                "application/json": {"schema": references[(f"{route.operation}:in", "validation")]}
            },
        }
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in _path_parameters(route.path)
    ]
    parameters += [
        {
            "name": name,
            "in": "query",
            "required": False,
            "description": meaning,
            "schema": {"type": "string"},
        }
        for name, meaning in route.query.items()
    ]
    operation["parameters"] = parameters


def _path_parameters(path: str) -> list[str]:
    return [part[1:-1] for part in path.split("/") if part.startswith("{")]
