"""Providers' keys: in memory only, in a type that never shows them, and masked wherever text goes.

A key comes over the control socket and goes into one header of a request to its provider. Nothing
else may ever hold its characters: not a log line, an error for an agent, a ledger row, a traceback.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping

from forkyard.base.masking import Masker
from forkyard.errors import ConfigError

_PRINTABLE = re.compile(r"[\x21-\x7e]{1,16384}")


class Key:
    """One secret; printing, formatting or pickling it shows nothing."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        """Give the secret itself, for the one header it goes into."""
        return self._value

    def __repr__(self) -> str:
        return "Key(***)"

    __str__ = __repr__

    def __reduce__(self) -> tuple[object, ...]:
        raise TypeError("a key is never pickled")


class KeyRing:
    """All keys by the name of their secret."""

    def __init__(self) -> None:
        """Start without any."""
        self._keys: dict[str, Key] = {}
        self._masker = Masker()

    def replace(self, values: Mapping[str, str]) -> None:
        """Hold these keys and no others.

        Raises:
            ConfigError: One of them cannot be sent in a header; its value is not told.
        """
        for name, value in values.items():
            if _PRINTABLE.fullmatch(value) is None:
                raise ConfigError(
                    f"cannot use secret {name}: it holds a space, a line break or another character"
                    " that no key has",
                    hint=f"Set it again with `forkyard secret set {name}`.",
                )
        self._keys = {name: Key(value) for name, value in values.items()}
        self._masker.replace(values)

    def get(self, name: str) -> Key | None:
        """Give the key of a secret's name; None where there is none."""
        return self._keys.get(name)

    def mask(self, text: str) -> str:
        """Replace every key in a text, however it is encoded."""
        return self._masker.mask_text(text)


class MaskingFormatter(logging.Formatter):
    """Formats log records, tracebacks included, with every key masked."""

    def __init__(self, keys: KeyRing) -> None:
        """Keep whose keys to mask."""
        super().__init__("%(asctime)s %(levelname)s %(name)s %(message)s")
        self._keys = keys

    def format(self, record: logging.LogRecord) -> str:
        """Format one record."""
        return self._keys.mask(super().format(record))
