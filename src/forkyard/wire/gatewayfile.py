"""The gateway's settings file: providers, which models of theirs are allowed, and prices.

```yaml
providers:
  - name: anthropic                         # inside: http://anthropic
    api: anthropic                          # anthropic, openai or gemini
    url: https://api.anthropic.com
    secret: ANTHROPIC_API_KEY               # name of a secret; absent: no key is sent
    models: [claude-opus-5-5, "claude-sonnet-*"]
    most_output_tokens: 64000
    requests_per_minute: 500
    concurrent_requests: 32
    idle_timeout: 60s
    answer_timeout: 5m
    request_timeout: 60m
prices:                                     # USD per million tokens
  - {model: my-model, input: 3, output: 15, cache_read: 0.3, cache_write: 3.75}
```

Without the file, or without `providers:` in it, there are three at their public addresses.
"""

from __future__ import annotations

import re
from decimal import Decimal
from urllib.parse import urlsplit

from forkyard.model.provider import (
    ANSWER_SECONDS,
    IDLE_SECONDS,
    REQUEST_SECONDS,
    Api,
    GatewaySettings,
    Price,
    Provider,
)
from forkyard.wire import yaml
from forkyard.wire.fields import VARIABLE_NAME, Problems, Section, kind, root_section

DEFAULT_PROVIDERS = (
    Provider(
        name="anthropic",
        api=Api.ANTHROPIC,
        base_url="https://api.anthropic.com",
        secret="ANTHROPIC_API_KEY",  # noqa: S106 - its name
    ),
    Provider(
        name="openai",
        api=Api.OPENAI,
        base_url="https://api.openai.com",
        secret="OPENAI_API_KEY",  # noqa: S106 - its name
    ),
    Provider(
        name="gemini",
        api=Api.GEMINI,
        base_url="https://generativelanguage.googleapis.com",
        secret="GEMINI_API_KEY",  # noqa: S106 - its name
    ),
)
MOST_PROVIDERS = 32
_HOST_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", re.ASCII)
_NOT_A_PROVIDER = frozenset({"localhost", "egress"})
_MOST_TOKENS = 10_000_000
_MOST_REQUESTS = 1_000_000
_MOST_SECONDS = 3600.0
_MOST_PRICE = 100_000
_MICRO = 1_000_000


def parse_gateway_settings(text: str, file: str | None = None) -> GatewaySettings:
    """Read a settings file.

    Args:
        text: The whole file; an empty one gives the defaults.
        file: Its name, for messages.

    Raises:
        ConfigError: With every problem at once: file, line, dotted key.
    """
    document = yaml.load(text, file)
    if document.root.value is None:
        return GatewaySettings(providers=DEFAULT_PROVIDERS)
    problems = Problems(file)
    settings = GatewaySettings(providers=DEFAULT_PROVIDERS)
    root = root_section(document, problems)
    if root is not None:
        providers = _providers(root) if root.has("providers") else DEFAULT_PROVIDERS
        settings = GatewaySettings(providers=providers, prices=_prices(root))
        root.finish()
    problems.raise_if_any()
    return settings


def _providers(root: Section) -> tuple[Provider, ...]:
    found: dict[str, Provider] = {}
    sections = root.sections("providers")
    if len(sections) > MOST_PROVIDERS:
        root.problem("providers", f"has {len(sections)} entries, {MOST_PROVIDERS} at most")
    for entry in sections:
        provider = _provider(entry)
        entry.finish()
        if provider is None:
            continue
        if provider.name in found:
            entry.problem("name", f"{provider.name} is the name of two providers")
        found[provider.name] = provider
    return tuple(found.values())


def _provider(entry: Section) -> Provider | None:
    name = entry.text("name", required=True)
    if name is not None and (_HOST_NAME.fullmatch(name) is None or name in _NOT_A_PROVIDER):
        entry.problem("name", f"{name!r} is no host name: use small letters, digits and '-'")
        name = None
    api = entry.choice("api", tuple(Api), {})
    if not entry.has("api"):
        entry.problem("api", "is missing; it is anthropic, openai or gemini")
    url = _url(entry)
    secret = entry.text("secret")
    if secret is not None and VARIABLE_NAME.fullmatch(secret) is None:
        entry.problem("secret", "is no name of a secret; never write the key itself here")
    models = entry.texts("models", _wrong_pattern)
    most_output = entry.integer("most_output_tokens", least=1, most=_MOST_TOKENS)
    per_minute = entry.integer("requests_per_minute", least=1, most=_MOST_REQUESTS)
    at_once = entry.integer("concurrent_requests", least=1, most=_MOST_REQUESTS)
    idle = _seconds(entry, "idle_timeout", IDLE_SECONDS)
    chat_limit = entry.choice("chat_limit", ("max_tokens", "max_completion_tokens"), {})
    answer = _seconds(entry, "answer_timeout", ANSWER_SECONDS)
    request = _seconds(entry, "request_timeout", REQUEST_SECONDS)
    if name is None or api is None or url is None:
        return None
    return Provider(
        name=name,
        api=Api(api),
        base_url=url,
        secret=secret,
        models=models,
        most_output_tokens=most_output,
        requests_per_minute=per_minute,
        concurrent_requests=at_once,
        idle_seconds=idle,
        answer_seconds=answer,
        request_seconds=request,
        chat_limit=chat_limit,
    )


def _url(entry: Section) -> str | None:
    url = entry.text("url", required=True)
    if url is None:
        return None
    try:
        parts = urlsplit(url)
        usable = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable, parts = False, urlsplit("")
    if not usable:
        entry.problem("url", "is no address; write it as https://HOST or http://HOST:PORT")
        return None
    if parts.username is not None or parts.password is not None:
        entry.problem("url", "must not carry a user name or password; name a `secret` instead")
        return None
    if parts.query or parts.fragment:
        entry.problem("url", "must end before any `?` or `#`")
        return None
    # Many write it with the first part of the API's own path, which is added to each request.
    url = re.sub(r"/v1(beta)?$", "", url.rstrip("/"))
    if re.search(r"/v\d+$", url):
        entry.problem("url", "must end before the API's own path, which begins with /v1")
        return None
    return url


def _wrong_pattern(text: str) -> str | None:
    if "*" in text.removesuffix("*"):
        return f"{text!r} may have `*` at its end only"
    return None


def _seconds(entry: Section, key: str, usual: float) -> float:
    seconds = entry.duration(key)
    if seconds is None:
        return usual
    if not 1.0 <= seconds <= _MOST_SECONDS:
        entry.problem(key, f"is {seconds:g} s, must be from 1 s to {_MOST_SECONDS:g} s")
        return usual
    return seconds


def _prices(root: Section) -> tuple[Price, ...]:
    found: dict[str, Price] = {}
    for entry in root.sections("prices"):
        model = entry.text("model", required=True)
        price_in, price_out = _micro(entry, "input"), _micro(entry, "output")
        read, write = _micro(entry, "cache_read"), _micro(entry, "cache_write")
        for key in ("input", "output"):
            if not entry.has(key):
                entry.problem(key, "is missing; a price of nothing is written as 0")
        entry.finish()
        if model is None or price_in is None or price_out is None:
            continue
        if model in found:
            entry.problem("model", f"{model} has two prices")
        found[model] = Price(
            model=model,
            input=price_in,
            output=price_out,
            # Said nothing, cached tokens cost what others do: never less than they may.
            cache_read=price_in if read is None else read,
            cache_write=price_in if write is None else write,
        )
    return tuple(found.values())


def _micro(entry: Section, key: str) -> int | None:
    node = entry.node(key)
    if node is None:
        return None
    value = node.value
    if isinstance(value, bool) or not isinstance(value, int | float):
        entry.problem(key, f"must be USD per million tokens, not {kind(value)}")
        return None
    micro = Decimal(str(value)) * _MICRO
    if not 0 <= value <= _MOST_PRICE or micro != micro.to_integral_value():
        entry.problem(key, f"is {value}, must be from 0 to {_MOST_PRICE}, six decimals at most")
        return None
    return int(micro)
