"""A key shows itself nowhere but where it is asked for by name."""

from __future__ import annotations

import base64
import logging
import pickle

import pytest

from forkyard.errors import ConfigError
from forkyard.gateway.keys import Key, KeyRing, MaskingFormatter

CANARY = "sk-dummy-3c9d1f7b5a2e"


def test_shows_nothing_when_it_is_printed_or_pickled() -> None:
    """In no form that a log line, a traceback or a dump would take."""
    key = Key(CANARY)
    assert CANARY not in f"{key} {key!r} {[key]}"
    assert key.reveal() == CANARY
    with pytest.raises(TypeError, match="never pickled"):
        pickle.dumps(key)


def test_masks_every_key_when_text_holds_one() -> None:
    """As it is, and in base64."""
    ring = KeyRing()
    ring.replace({"KEY": CANARY})
    found = ring.get("KEY")
    assert found is not None
    assert found.reveal() == CANARY
    assert ring.get("OTHER") is None
    encoded = base64.b64encode(CANARY.encode()).decode()
    masked = ring.mask(f"a {CANARY} b {encoded} c")
    assert CANARY not in masked
    assert encoded not in masked
    assert masked.startswith("a ")


@pytest.mark.parametrize("value", ["a b", "a\r\nx-evil: 1", "", "\u00e4"])
def test_refuses_a_key_when_no_header_can_hold_it(value: str) -> None:
    """Nothing is told of its value, and the keys before stay."""
    ring = KeyRing()
    ring.replace({"KEY": CANARY})
    with pytest.raises(ConfigError, match="secret KEY") as raised:
        ring.replace({"KEY": value})
    if value:
        assert value not in raised.value.message
    assert ring.get("KEY") is not None


def test_masks_tracebacks_when_an_error_repeats_a_key() -> None:
    """The formatter sees the whole record, so nothing of it passes by."""
    ring = KeyRing()
    ring.replace({"KEY": CANARY})
    with pytest.raises(ValueError, match="invalid literal") as raised:
        int(CANARY)
    trouble = (raised.type, raised.value, raised.tb)
    record = logging.LogRecord("n", logging.ERROR, "f", 1, "%s", (CANARY,), trouble)
    text = MaskingFormatter(ring).format(record)
    assert "invalid literal" in text
    assert CANARY not in text
