"""What the gateway's HTTP side asks of one provider's API: bytes in, bytes and facts out.

Nothing here opens a socket, reads a clock or keeps a key. The order of one request is:

    routing.route(api, head) -> Route | Refused | Local
                                 before the body is read; Refused and Local are answered at once
    content_coding.decoded(body, encoding, most_bytes=MOST_BODY_BYTES) -> bytes
                                 gzip, deflate, zstd, bounded; ContentError in words
    protocol.rebuild(...)        the new upstream request; nothing of the agent's bytes is reused
    reserve                      by `input_tokens` and `output_tokens` of what was rebuilt
    protocol.with_max_output     when the reservation had to be clamped
    send                         base_url + path, `headers` + `key_headers(key)`, `body`
    meter.feed / end / reading   beside the stream, which goes to the agent untouched

Upstream is always asked for `accept-encoding: identity`, so that metering costs little; a provider
that compresses all the same is read through `content_coding.Decoder`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Protocol

from forkyard.gateway.interface import Finish, Outcome
from forkyard.model.budget import TokenCounts

Headers = tuple[tuple[str, str], ...]
"""Names in lower case where they are ours; in any case where they came from outside."""

DEFAULT_OUTPUT_TOKENS = 32_000
"""What a request may write that names no limit, where the provider's settings give none."""
OUTPUT_FLOOR = 1024
"""Fewest tokens beyond its thinking that a clamped request is worth sending with."""


class Operation(StrEnum):
    """What a request asks a provider to do."""

    MESSAGES = "messages"
    COUNT_TOKENS = "count-tokens"
    RESPONSES = "responses"
    CHAT = "chat"
    GENERATE = "generate"
    MODELS = "models"

    @property
    def is_metered(self) -> bool:
        """Say whether it spends tokens; the others are free and need no reservation."""
        return self not in {Operation.COUNT_TOKENS, Operation.MODELS}


class Reason(StrEnum):
    """Why the gateway itself answers instead of a provider."""

    BUDGET = "budget"
    """The attempt or run has nothing left: the agent is to stop."""
    LIMIT = "limit"
    """More requests than the attempt may make: the agent is to stop."""
    RATE = "rate"
    """Not now; `retry_after_seconds` says when."""
    REQUEST = "request"
    """The request cannot be understood or holds what is not allowed."""
    FORBIDDEN = "forbidden"
    """The path or the model is not allowed."""
    NOT_FOUND = "not-found"
    TOO_LARGE = "too-large"
    UPGRADE = "upgrade"
    """A WebSocket was asked for; clients fall back to plain HTTP at once."""
    PROVIDER = "provider"
    """The provider could not be reached, or broke off before its first byte."""
    SLOW = "slow"
    """The provider did not answer in time."""
    BUSY = "busy"
    """The gateway itself has no room now; worth another try."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestHead:
    """A request as the agent sent it, without its body; hostile."""

    method: str
    target: str
    """Raw path and query of the request line."""
    headers: Headers = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What one grant may ask of one provider."""

    models: tuple[str, ...] = ()
    """The provider's allowlist; `*` at the end matches any rest; empty: all."""
    granted_models: tuple[str, ...] = ()
    """The grant's, exact; empty: whatever the provider's lets through."""
    most_output_tokens: int | None = None
    """Cap on each request's output."""
    needs_max_tokens: bool = False
    """A chat's limit holds only under this name: it is sent whatever name was used."""
    allows_paid_tools: bool = False
    """Tools that the provider runs and bills apart, such as web search: they are not metered."""
    allows_remote_content: bool = False
    """Addresses and stored files that the provider would fetch, and its own stored state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A whole answer that the gateway gives by itself."""

    status: int
    headers: Headers
    body: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """A request that goes no further."""

    answer: Answer
    outcome: Outcome
    reason: str
    """One clause for a person and for the ledger; holds no text of the request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Local:
    """A probe that some agents send before their first request: answered, counted nowhere."""

    answer: Answer


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebuilt:
    """The new request that is sent upstream; everything in it was checked or written by us."""

    operation: Operation
    method: str
    path: str
    """Path and query, to be appended to the provider's base URL."""
    headers: Headers
    """Without any key, host or length."""
    body: bytes
    model: str
    """Empty for `models`, which asks for none."""
    is_streaming: bool
    input_tokens: int
    """Most tokens it may be billed as input, cached or not: a bound by size, never a count.

    Holds for all text, in documents too, and for images; with a document of pages it is the most
    that any model of the API reads at once.
    """
    may_write_cache: bool
    """The input bound is to be priced at the dearer of plain input and cache write."""
    has_long_cache: bool = False
    """It asks for a cache of an hour, which costs more to write."""
    output_tokens: int
    """Most it may write: what the body now says."""
    least_output_tokens: int
    """`with_max_output` takes nothing less: the thinking budget and a floor, or what was asked."""
    dropped: tuple[str, ...] = ()
    """What was taken out of the request, in words for a log: names of fields and tool types."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What an answer has told so far."""

    tokens: TokenCounts = field(default_factory=TokenCounts)
    """Last known; exact once `is_final`."""
    is_input_known: bool = False
    """Input and cache counts are exact already; only the output may still grow."""
    is_final: bool = False
    """The provider told the final usage."""
    has_ended: bool = False
    """The answer came to its own end, good or bad; False: it was cut."""
    error: str | None = None
    """The provider's error within a stream, as a known type's name, else `other`."""
    is_malformed: bool = False
    """Some event or the body was no JSON, or too large to be one."""
    finish: Finish = Finish.UNKNOWN
    """Why the model stopped writing."""

    def bound(self, rebuilt: Rebuilt) -> TokenCounts:
        """Give the most that the request can have cost, whatever was not told."""
        if self.is_final:
            return self.tokens
        output = max(rebuilt.output_tokens, self.tokens.output)
        if self.is_input_known:
            return replace(self.tokens, output=output)
        whole = rebuilt.input_tokens
        if rebuilt.may_write_cache:
            long = whole if rebuilt.has_long_cache else 0
            return TokenCounts(cache_write=whole, cache_write_long=long, output=output)
        return TokenCounts(input=whole, output=output)


class UsageMeter(Protocol):
    """Reads usage beside one answer with status 200; never raises, whatever it is fed."""

    def feed(self, chunk: bytes) -> None:
        """Take the next decoded bytes, cut anywhere."""
        ...

    def end(self) -> None:
        """Say that no more bytes come, for whatever reason."""
        ...

    def reading(self) -> Reading:
        """Give what is known so far; cheap, may be asked at any time."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """One allowed endpoint of one API, found by method and path."""

    operation: Operation
    protocol: ModelProtocol
    """The API that rebuilds its requests and words its answers."""
    path: str
    """What is sent upstream: path and query, written by us."""
    model: str | None = None
    """The model that the path names; None where the body does."""
    is_streaming: bool | None = None
    """What the path says; None where the body does."""


class ModelProtocol(Protocol):
    """One API. Stateless; the instances live in `routing`."""

    def rebuild(
        self, route: Route, head: RequestHead, body: bytes, policy: Policy
    ) -> Rebuilt | Refused:
        """Parse once, check, and write a new request.

        Args:
            route: What `routing.route` found for the same head.
            head: Only headers from an allowlist are copied.
            body: Decoded; empty for GET.
            policy: What this grant may ask of this provider.
        """
        ...

    def with_max_output(self, rebuilt: Rebuilt, tokens: int) -> Rebuilt:
        """Write the request again with a smaller limit.

        Args:
            rebuilt: Metered; what `rebuild` gave.
            tokens: At least `least_output_tokens`, which is asserted; more than the present
                limit changes nothing.
        """
        ...

    def key_headers(self, key: str) -> Headers:
        """Give the headers that carry the key; added last."""
        ...

    def meter(self, rebuilt: Rebuilt, *, is_event_stream: bool) -> UsageMeter:
        """Start to read an answer.

        Args:
            rebuilt: The request that is answered.
            is_event_stream: What the answer's content type says, whatever was asked for.
        """
        ...

    def answer(
        self, reason: Reason, words: str, *, retry_after_seconds: int | None = None
    ) -> Answer:
        """Say no in the form that this API's clients understand; `words` reach the agent."""
        ...
