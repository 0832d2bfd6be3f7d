"""Model providers, prices and settings of the gateway, as a person configures them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from urllib.parse import urlsplit

IDLE_SECONDS = 60.0
ANSWER_SECONDS = 300.0
REQUEST_SECONDS = 3600.0


_KNOWS_THE_NEWER_NAME = (".openai.com", ".openai.azure.com")


class Api(StrEnum):
    """The dialect that a provider speaks."""

    ANTHROPIC = "anthropic"
    OPENAI = "openai"
    """Responses and Chat Completions."""
    GEMINI = "gemini"


@dataclass(frozen=True, slots=True, kw_only=True)
class Provider:
    """One upstream: the host name that sandboxes see it under, and where it really is."""

    name: str
    """Inside, `http://NAME`."""
    api: Api
    base_url: str
    """Everything before the API's own path, such as `/v1/messages`."""
    secret: str | None = None
    """Name of the secret that holds its key; None where it wants none."""
    models: tuple[str, ...] = ()
    """Allowed models, `*` at the end matches any rest; empty: all."""
    most_output_tokens: int | None = None
    requests_per_minute: int | None = None
    concurrent_requests: int | None = None
    idle_seconds: float = IDLE_SECONDS
    """Silence after which a stream, or the wait for its first byte, counts as stalled."""
    answer_seconds: float = ANSWER_SECONDS
    """The same for an answer that is no stream: the model writes all of it first.

    A stream that brings nothing but pings is borne for as long: the model thinks, unseen.
    """
    request_seconds: float = REQUEST_SECONDS
    """The most that one request may take, whatever comes."""
    chat_limit: str | None = None
    """By which name its Chat Completions know their limit for sure; None: its address says."""

    @property
    def needs_max_tokens(self) -> bool:
        """Say whether `max_tokens` must be in a chat's request, for the limit to hold at all.

        Many who speak OpenAI's API silently ignore `max_completion_tokens`; OpenAI itself refuses
        `max_tokens` for some of its models.
        """
        if self.chat_limit is not None:
            return self.chat_limit == "max_tokens"
        return not f".{urlsplit(self.base_url).hostname}".endswith(_KNOWS_THE_NEWER_NAME)


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """Micro-dollars per million tokens; overrides the price table."""

    model: str
    input: int
    output: int
    cache_read: int
    cache_write: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewaySettings:
    """Everything that the gateway is told once and again after each of its restarts."""

    providers: tuple[Provider, ...] = ()
    prices: tuple[Price, ...] = ()
