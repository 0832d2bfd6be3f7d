"""What the agent gets to see of a provider's answer, and of our own."""

from __future__ import annotations

import json
import os
import ssl
from collections.abc import Mapping

import aiohttp
from aiohttp import web
from multidict import CIMultiDict

from forkyard.gateway.keys import KeyRing
from forkyard.gateway.protocols.interface import Answer, ModelProtocol, Reason

Headers = CIMultiDict[str]

MOST_ERROR_BYTES = 64 * 1024
_MOST_HEADER = 2_048
_KEPT = (
    "content-type",
    "content-encoding",
    "request-id",
    "x-request-id",
    "cache-control",
    "retry-after",
    "x-should-retry",
)
"""Nothing that tells of the account: its organisation, its limits, its cookies."""


def kept_headers(answer: aiohttp.ClientResponse) -> Headers:
    """Copy those headers of a provider's answer that an agent may see."""
    kept: Headers = CIMultiDict()
    for name in _KEPT:
        if (value := _said(answer, name)) is not None:
            kept[name] = value
    return kept


def _said(answer: aiohttp.ClientResponse, name: str) -> str | None:
    value = answer.headers.get(name)
    # Whatever else bytes were read as, they could not be written again.
    is_fair = value is not None and len(value) <= _MOST_HEADER and value.isascii()
    return value if is_fair else None


def given(answer: Answer) -> web.Response:
    """Give an answer of our own."""
    return web.Response(status=answer.status, headers=CIMultiDict(answer.headers), body=answer.body)


async def passed_on(
    answer: aiohttp.ClientResponse, protocol: ModelProtocol, keys: KeyRing
) -> web.Response:
    """Pass a provider's error on: its status, and its body where that is plain JSON.

    The JSON is written anew, with every key in it masked, also where it was escaped.
    """
    text = _plain_json(await _bounded(answer), keys)
    if answer.status < 400 or text is None:  # noqa: PLR2004 - HTTP: errors start there
        own = protocol.answer(Reason.PROVIDER, f"the provider answered {answer.status}")
        response = given(own)
        if answer.status >= 400:  # noqa: PLR2004 - the first status that is an error
            response.set_status(answer.status)
    else:
        response = web.Response(status=answer.status, text=text, content_type="application/json")
    for name in ("request-id", "x-request-id", "retry-after", "x-should-retry"):
        if (value := _said(answer, name)) is not None:
            response.headers[name] = keys.mask(value)
    return response


def _plain_json(body: bytes | None, keys: KeyRing) -> str | None:
    """Write an error's JSON anew; None where it is none, or none that can be written."""
    try:
        content = None if body is None else json.loads(body)
        if not isinstance(content, dict | list):
            return None
        # In ASCII: half of a surrogate pair can be read, but not be sent.
        return json.dumps(_masked(content, keys), allow_nan=False)
    except (ValueError, RecursionError):
        return None


def _masked(content: object, keys: KeyRing) -> object:
    if isinstance(content, str):
        return keys.mask(content)
    if isinstance(content, list):
        return [_masked(one, keys) for one in content]
    if isinstance(content, Mapping):
        return {keys.mask(str(name)): _masked(one, keys) for name, one in content.items()}
    return content


async def _bounded(answer: aiohttp.ClientResponse) -> bytes | None:
    if answer.headers.get("content-encoding", "identity").lower() != "identity":
        return None
    body = bytearray()
    try:
        while chunk := await answer.content.readany():
            body += chunk
            if len(body) > MOST_ERROR_BYTES:
                return None
    except (TimeoutError, aiohttp.ClientError, OSError):
        return None
    return bytes(body)


def connect_trouble(error: aiohttp.ClientConnectorError) -> str:
    """Say in a clause why a provider was not reached; no address, agents read it."""
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return "the provider cannot be reached: its name is not known here"
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return "the provider cannot be trusted: its certificate is not valid"
    if isinstance(error, aiohttp.ClientSSLError) or isinstance(error.os_error, ssl.SSLError):
        return "the provider cannot be reached: no TLS connection came about"
    number = error.os_error.errno  # its own words name the address
    reason = os.strerror(number).lower() if number else type(error.os_error).__name__
    return f"the provider cannot be reached: {reason}"
