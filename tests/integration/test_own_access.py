"""A person's own workspace at the gateway: let in, counted, limited, closed with its sandbox."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from forkyard import ConfigError, connect_blocking
from model_yard import CANARY, SECRET, ModelYard, model_yard
from projects import forkyard

ASK = "python3 -B ask.py default"
TEMPLATE = "spec:\n  image: host\n  repository: {path: repo, include_uncommitted: true}\n"


@pytest.fixture
def yard(home: Path, tmp_path: Path) -> Iterator[ModelYard]:
    """Give a yard with a template of its repository, built."""
    with model_yard(home, tmp_path) as made:
        (tmp_path / "own.yaml").write_text(TEMPLATE)
        for words in (("apply", "own.yaml"), ("build", "own")):
            assert forkyard("template", *words, directory=tmp_path).returncode == 0
        yield made


def test_workspace_reaches_models_without_a_key_when_its_network_is_gateway(
    yard: ModelYard,
) -> None:
    """Also after a stop and in a new server; what it spent is in `usage` under its name."""
    with connect_blocking() as client:
        made = client.workspaces.create(template="own", network="gateway", display_name="mine")
        first = made.exec(ASK, timeout_seconds=60)
        assert first.stdout == b"200 Hello.\n", first
        assert CANARY.encode() not in made.exec("env; cat /proc/*/environ").stdout
        made.stop()
        assert made.exec(ASK, timeout_seconds=60).succeeded
    yard.kill_server()
    with connect_blocking() as client:
        made = client.workspaces.get("mine")
        assert made.exec(ASK, timeout_seconds=60).succeeded
        made.delete()
    yard.wait_until(lambda: "mine" in _usage(yard))
    lines = [line for line in _usage(yard).splitlines() if "mine" in line]
    assert len(lines) == 1
    assert yard.billed()[0] == 3


def _usage(yard: ModelYard) -> str:
    return forkyard("usage", "--by", "attempt", directory=yard.folder).stdout


@pytest.mark.usefixtures("yard")
def test_workspace_is_refused_at_the_gateway_when_its_budget_is_used_up() -> None:
    """And a budget without network `gateway` is refused at once."""
    with connect_blocking() as client:
        made = client.workspaces.create(template="own", network="gateway", budget_tokens=8000)
        ended = [made.exec(ASK, timeout_seconds=60).succeeded for _ in range(5)]
        assert ended[0]
        assert not ended[-1]
        made.delete()
        with pytest.raises(Exception, match="a budget needs network gateway"):
            client.workspaces.create(template="own", budget_tokens=8000)


@pytest.mark.usefixtures("yard")
def test_workspace_is_refused_when_no_provider_has_a_key() -> None:
    """Rather than leaving its agent to find out."""
    with connect_blocking() as client:
        client.secrets.delete(SECRET)
        with pytest.raises(ConfigError, match="no provider has its key"):
            client.workspaces.create(template="own", network="gateway")
