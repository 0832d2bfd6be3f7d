"""What the APIs' requests have in common: fields, headers, models, limits, tools, weight."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Self

from forkyard.gateway.interface import Api
from forkyard.gateway.protocols.interface import (
    DEFAULT_OUTPUT_TOKENS,
    Headers,
    Operation,
    Policy,
    Reason,
    Rebuilt,
    RequestHead,
    Route,
)
from forkyard.gateway.protocols.json_body import Json, JsonObject
from forkyard.gateway.protocols.refusal import RequestError

_MODEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@+-]{0,199}")
_AGENT = re.compile(r"[\x20-\x7e]{1,256}")
_MOST_OUTPUT = 10**9
_ALLOWANCE = 4096
"""What a provider adds by itself: its own words about a few of its tools are some 2,500 tokens."""
_IMAGE = 50_000
"""More than any provider bills for one picture in its finest detail."""
_TEXTS = ("text/", "data:text/", "application/json")
_PACKED = ("JVBER", "UEsD")
"""How a document of pages and a packed one begin, in base64, whatever is said of them."""

_MOST_INPUT = {Api.ANTHROPIC: 1_000_000, Api.OPENAI: 1_100_000, Api.GEMINI: 2_100_000}
"""Most tokens that any model of the API's makers reads in one request; more is an error there."""


@dataclass(slots=True, kw_only=True)
class Weight:
    """How many tokens a body can be, told by its bytes; pictures and pages are counted apart.

    A bound for text, also within documents. A document of pages is compressed, and can show one
    piece of text on any number of pages, so neither its bytes nor any count of ours bounds what
    its provider makes of it. What the provider's models can read at once does.
    """

    most_input: int
    """Most tokens that any model of this API reads in one request."""
    images: int = 0
    coded: int = 0
    has_pages: bool = False

    def image(self, data: str) -> None:
        """Count a picture that the body holds."""
        self.images += 1
        self.coded += _tokens(data.encode("utf-8", "replace"))

    def document(self, kind: Json, data: str) -> None:
        """Count a document that the body holds.

        Args:
            kind: Its media type, or an address that begins with it.
            data: In base64, or an address that ends with that.
        """
        is_text = isinstance(kind, str) and kind.lower().startswith(_TEXTS)
        is_packed = data.partition(",")[2].startswith(_PACKED) or data.startswith(_PACKED)
        self.has_pages = self.has_pages or not is_text or is_packed

    def tokens(self, body: bytes) -> int:
        """Bound the input tokens of a body."""
        text = max(0, _tokens(body) - self.coded)
        whole = text + self.images * _IMAGE + _ALLOWANCE
        return max(whole, self.most_input) if self.has_pages else whole


def _tokens(text: bytes) -> int:
    # A token of a byte-level vocabulary is at least one byte, and text in JSON is never shorter
    # than the text; what stands between messages is paid for by the JSON around them. Less is no
    # bound: measured, base64 gives 0.72 tokens a byte, random letters 0.66, hexadecimal 0.57.
    return len(text)


@dataclass(slots=True, kw_only=True)
class Shaping:
    """What one rebuilding has found on its way."""

    policy: Policy
    weight: Weight
    dropped: list[str] = field(default_factory=list)
    has_cache_mark: bool = False
    has_long_cache: bool = False

    @classmethod
    def begin(cls, policy: Policy, api: Api) -> Self:
        """Begin to rebuild a request of an API."""
        return cls(policy=policy, weight=Weight(most_input=_MOST_INPUT[api]))

    def only(self, body: JsonObject, known: Collection[str]) -> JsonObject:
        """Keep the known fields, in their order."""
        kept = {name: value for name, value in body.items() if name in known}
        lost = len(body) - len(kept)
        if lost:
            self.dropped.append(f"{lost} unknown fields")
        return kept

    def drop(self, body: JsonObject, *names: str) -> None:
        """Take fields out that would change the price."""
        for name in names:
            if body.pop(name, None) not in (None, False):
                self.dropped.append(name)

    def forbid(self, body: JsonObject, *names: str) -> None:
        """Refuse fields that make the provider reach for something.

        Raises:
            RequestError: One of them says anything.
        """
        for name in names:
            if body.pop(name, None) not in (None, False, [], {}, ""):
                raise RequestError(f"the field {name} is not allowed here")

    def remote(self, what: str) -> None:
        """Meet something that the provider would fetch.

        Raises:
            RequestError: The policy does not allow it.
        """
        if not self.policy.allows_remote_content:
            raise RequestError(f"{what} is not allowed; put the content itself into the request")

    def paid_tool(self, name: str) -> bool:
        """Say whether a tool that the provider runs may stay; notes it where not."""
        if self.policy.allows_paid_tools:
            return True
        self.dropped.append(f"tool {name}")
        return False


def need_tools(kept: Collection[Json], all_of_them: Collection[Json]) -> None:
    """Refuse a request that asks for nothing but tools that were dropped.

    Raises:
        RequestError: There were tools, and none is left.
    """
    if all_of_them and not kept:
        raise RequestError(
            "it offers only tools that the provider runs and bills apart, such as web search"
        )


def check_model(name: Json, policy: Policy) -> str:
    """Give the model's name.

    Raises:
        RequestError: It is no name, or neither the provider nor the grant allows it.
    """
    if not isinstance(name, str) or not _MODEL.fullmatch(name):
        raise RequestError("the field model is no model's name")
    is_allowed = not policy.models or any(_matches(name, one) for one in policy.models)
    if not is_allowed or (policy.granted_models and name not in policy.granted_models):
        raise RequestError(f"the model {name} is not allowed here", Reason.FORBIDDEN)
    return name


def _matches(name: str, pattern: str) -> bool:
    if pattern.endswith("*"):
        return name.startswith(pattern[:-1])
    return name == pattern


def output_limit(asked: Json, field_name: str, policy: Policy) -> int:
    """Give the limit that is sent.

    Raises:
        RequestError: What was asked is no number of tokens.
    """
    cap = policy.most_output_tokens
    if asked is None:
        return cap if cap is not None else DEFAULT_OUTPUT_TOKENS
    if not isinstance(asked, int) or isinstance(asked, bool) or not 1 <= asked <= _MOST_OUTPUT:
        raise RequestError(f"the field {field_name} is no number of tokens")
    return asked if cap is None else min(asked, cap)


def flag(body: JsonObject, name: str) -> bool:
    """Read a yes or no that is no when absent.

    Raises:
        RequestError: It is neither.
    """
    value = body.get(name)
    if value is None:
        return False
    if not isinstance(value, bool):
        raise RequestError(f"the field {name} is neither true nor false")
    return value


def object_at(body: JsonObject, name: str) -> JsonObject | None:
    """Read an object that may be absent.

    Raises:
        RequestError: It is something else.
    """
    value = body.get(name)
    if value is None:
        body.pop(name, None)
        return None
    if not isinstance(value, dict):
        raise RequestError(f"the field {name} is no object")
    return value


def objects_at(body: JsonObject, name: str, *, is_needed: bool = False) -> list[JsonObject]:
    """Read a list of objects; empty where it is absent.

    Raises:
        RequestError: It is something else, or is needed and absent.
    """
    value = body.get(name)
    if value is None and not is_needed:
        body.pop(name, None)
        return []
    if not isinstance(value, list):
        raise RequestError(f"the field {name} is no list")
    found = [one for one in value if isinstance(one, dict)]
    if len(found) != len(value):
        raise RequestError(f"the field {name} is no list of objects")
    return found


def header(head: RequestHead, name: str) -> str | None:
    """Give a header's value; the first where it is repeated."""
    return next((value for key, value in head.headers if key.lower() == name), None)


def base_headers(head: RequestHead, *, is_streaming: bool, has_body: bool) -> Headers:
    """Write the headers that every request has; of the agent's only its name is kept."""
    headers = [("accept", "text/event-stream" if is_streaming else "application/json")]
    headers.append(("accept-encoding", "identity"))
    if has_body:
        headers.append(("content-type", "application/json"))
    agent = header(head, "user-agent")
    named = agent if agent is not None and _AGENT.fullmatch(agent) else "forkyard"
    return (*headers, ("user-agent", named))


def model_list(route: Route, headers: Headers) -> Rebuilt:
    """Ask which models there are."""
    return Rebuilt(
        operation=Operation.MODELS,
        method="GET",
        path=route.path,
        headers=headers,
        body=b"",
        model="",
        is_streaming=False,
        input_tokens=0,
        may_write_cache=False,
        output_tokens=0,
        least_output_tokens=0,
    )
