"""The gateway's settings file: what is read, and every problem at once."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from forkyard.errors import ConfigError
from forkyard.model.provider import Api, Price
from forkyard.wire import gatewayfile
from forkyard.wire.gatewayfile import DEFAULT_PROVIDERS, parse_gateway_settings

DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "gateway-file.md"


def problems_of(text: str) -> list[str]:
    """Give the problems of a file that has some."""
    with pytest.raises(ConfigError) as raised:
        parse_gateway_settings(text, "gateway.yaml")
    return [str(one) for one in raised.value.problems]


def test_gives_the_public_providers_when_the_file_says_nothing() -> None:
    """Empty, and with prices only."""
    assert parse_gateway_settings("").providers == DEFAULT_PROVIDERS
    told = parse_gateway_settings("prices: [{model: m, input: 1, output: 2.5}]")
    assert told.providers == DEFAULT_PROVIDERS
    assert told.prices == (
        Price(
            model="m",
            input=1_000_000,
            output=2_500_000,
            cache_read=1_000_000,
            cache_write=1_000_000,
        ),
    )


@pytest.mark.parametrize("source", [gatewayfile.__doc__ or "", DOCUMENT.read_text("utf-8")])
def test_reads_the_examples_when_they_are_copied(source: str) -> None:
    """What the module and the page show can be used as it stands."""
    found = re.search(r"```yaml\n(.*?)```", source, re.DOTALL)
    assert found is not None
    settings = parse_gateway_settings(found.group(1))
    assert settings.providers[0].api is Api.ANTHROPIC
    assert settings.providers[0].models == ("claude-opus-5-5", "claude-sonnet-*")
    assert settings.prices[0].cache_write == 3_750_000


@pytest.mark.parametrize(
    "url", ["http://h:8000", "http://h:8000/", "http://h:8000/v1", "http://h:8000/v1/"]
)
def test_keeps_what_comes_before_the_apis_path_when_an_address_has_it(url: str) -> None:
    """Each API adds its own /v1 to every request."""
    told = parse_gateway_settings(f"providers: [{{name: a, api: openai, url: '{url}'}}]")
    assert told.providers[0].base_url == "http://h:8000"


def test_reads_how_a_request_ends_and_how_a_chat_is_limited_when_they_are_said() -> None:
    """Both have a default; a name of a limit that nobody has is a problem."""
    entry = "{name: a, api: openai, url: 'http://h', request_timeout: 10m, chat_limit: max_tokens}"
    (told,) = parse_gateway_settings(f"providers: [{entry}]").providers
    assert (told.request_seconds, told.chat_limit) == (600.0, "max_tokens")
    (told,) = parse_gateway_settings(
        "providers: [{name: a, api: openai, url: 'http://h'}]"
    ).providers
    assert (told.request_seconds, told.chat_limit) == (3600.0, None)
    (problem,) = problems_of(f"providers: [{entry.replace('max_tokens', 'most')}]")
    assert "chat_limit" in problem


def test_tells_every_problem_when_there_are_several() -> None:
    """With line and key, and never more of a value than its name."""
    found = problems_of(
        "providers:\n"
        "  - {name: Foo, api: anthropic, url: 'http://user:pass@h'}\n"
        "  - {name: x, url: 'ftp://h', secret: sk-ant-not-a-name, modls: []}\n"
        "  - {name: x, api: openai, url: 'http://h', models: ['a*b'], idle_timeout: 2h}\n"
        "  - {name: x, api: openai, url: 'http://h'}\n"
        "prices:\n"
        "  - {model: m, input: -1}\n"
        "  - {model: m, input: 1, output: 0.0000001}\n"
        "other: 1\n"
    )
    for part in (
        "gateway.yaml:2: providers.0.name: 'Foo' is no host name",
        "gateway.yaml:2: providers.0.url: must not carry a user name or password",
        "gateway.yaml:3: providers.1.api: is missing",
        "gateway.yaml:3: providers.1.url: is no address",
        "gateway.yaml:3: providers.1.secret: is no name of a secret",
        "gateway.yaml:3: providers.1.modls: is an unknown key; did you mean models?",
        "gateway.yaml:4: providers.2.models.0: 'a*b' may have `*` at its end only",
        "gateway.yaml:4: providers.2.idle_timeout: is 7200 s",
        "gateway.yaml:5: providers.3.name: x is the name of two providers",
        "gateway.yaml:7: prices.0.input: is -1, must be from 0",
        "gateway.yaml:7: prices.0.output: is missing",
        "gateway.yaml:8: prices.1.output: is 1e-07, must be",
        "gateway.yaml:9: other: is an unknown key",
    ):
        assert any(part in one for one in found), (part, found)
    assert not any("pass" in one.partition("password")[0] and "user:" in one for one in found)
    assert not any("sk-ant" in one for one in found)


def test_each_key_is_on_the_page_when_it_can_be_written() -> None:
    """The page knows every key that the reader asks for."""
    source = Path(gatewayfile.__file__).read_text("utf-8")
    keys = set(re.findall(r'entry\.\w+\(\s*"(\w+)"', source))
    keys |= set(re.findall(r'_(?:seconds|micro)\(entry, "(\w+)"', source))
    page = DOCUMENT.read_text("utf-8")
    assert sorted(key for key in keys if f"{key}`" not in page) == []
