"""The description of the API says what the table says, and the table is sound."""

from __future__ import annotations

import json
from typing import Any

import pytest
from fastapi import FastAPI

from forkyard.server.app import describe
from forkyard.server.routes import ROUTES
from forkyard.server.table import Route


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    """Describe the API without serving it."""
    app = FastAPI(title="Forkyard", version="0")
    for route in ROUTES:
        app.add_api_route(route.path, lambda: None, methods=[route.method])
    described = describe(app)
    json.dumps(described)
    return described


def references(value: object) -> set[str]:
    """Collect every $ref below a value."""
    if isinstance(value, dict):
        here = {value["$ref"]} if isinstance(value.get("$ref"), str) else set()
        return here.union(*(references(one) for one in value.values()), set())
    if isinstance(value, list):
        return set().union(*(references(one) for one in value), set())
    return set()


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: f"{route.method} {route.path}")
def test_every_row_is_described(route: Route, document: dict[str, Any]) -> None:
    """Path, method, answer, error, request body and parameters."""
    operation = document["paths"][route.path][route.method.lower()]

    assert str(route.status) in operation["responses"]
    assert references(operation["responses"]["default"]) == {"#/components/schemas/ErrorBody"}
    assert ("requestBody" in operation) == (route.takes is not None)
    named = {one["name"] for one in operation["parameters"]}
    assert {part[1:-1] for part in route.path.split("/") if part.startswith("{")} <= named
    assert set(route.query) <= named


def test_every_reference_leads_somewhere(document: dict[str, Any]) -> None:
    """No dangling schema."""
    known = {f"#/components/schemas/{name}" for name in document["components"]["schemas"]}

    assert references(document) <= known


def test_rows_are_unique() -> None:
    """By method and path, and by the operation's id."""
    assert len({(route.method, route.path) for route in ROUTES}) == len(ROUTES)
    assert len({route.operation for route in ROUTES}) == len(ROUTES)


def test_requests_forbid_unknown_keys(document: dict[str, Any]) -> None:
    """What cannot be honoured is refused, never ignored."""
    names = {
        reference.rsplit("/", 1)[1]
        for route in ROUTES
        if route.takes is not None
        for reference in references(
            document["paths"][route.path][route.method.lower()]["requestBody"]
        )
    }

    assert names
    schemas = document["components"]["schemas"]
    assert [name for name in names if schemas[name].get("additionalProperties") is not False] == []
