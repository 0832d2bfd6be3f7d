"""What every request and answer has in common.

Requests forbid unknown keys: what cannot be honoured is refused, never ignored. Answers ignore
keys the reader does not know, so that a newer server can still be asked for its version.
"""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from forkyard.wire.errors import printable


def _printable(value: object) -> object:
    return printable(value) if isinstance(value, str) else value


Text = Annotated[str, BeforeValidator(_printable)]
"""Text that may come from an agent: undecodable bytes appear as ``\\xNN``."""

_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}"


def _is_name(value: str) -> str:
    if re.fullmatch(_NAME, value) is None:
        raise ValueError(
            f"{value[:120]!r} is no name: use letters, digits, '.', '-' and '_', starting with a"
            " letter or digit, 100 characters at most"
        )
    return value


Name = Annotated[str, AfterValidator(_is_name), Field(json_schema_extra={"pattern": f"^{_NAME}$"})]
"""A name that people type and that is safe in paths, URLs and shells."""


Vars = Annotated[dict[str, Annotated[str, Field(max_length=64 * 1024)]], Field(max_length=200)]
"""Values of a template's `vars`, as text."""


class RequestModel(BaseModel):
    """Base of what a client sends."""

    model_config = ConfigDict(extra="forbid", defer_build=True)


class AnswerModel(BaseModel):
    """Base of what the server answers."""

    model_config = ConfigDict(extra="ignore", from_attributes=True, defer_build=True)


class Nothing(AnswerModel):
    """The answer of a request that has nothing to say but success."""
