"""JSON with comments and trailing commas, as devcontainer.json is written."""

from __future__ import annotations

import json
import re
from typing import Any

MOST_CHARACTERS = 1_000_000
_SHORTEST = len("/**/")
_TOKEN = re.compile(
    r'"(?:[^"\\\n]|\\.)*"'  # a string, in which nothing is a comment
    r"|//[^\n]*"
    r"|/\*(?:.*?\*/|.*)"  # one never closed goes to the end: none is looked at twice
    # Nothing taken here is given back: a row of comments could be cut in too many ways.
    r"|,(?=(?>\s+|//[^\n]*|/\*.*?\*/)*+[}\]])",
    re.DOTALL,
)


def load(text: str) -> Any:  # noqa: ANN401 - JSON is anything
    """Read a document; lines in messages are those of the text as written.

    Raises:
        ValueError: It is no JSON even without its comments, it is too large, or nested too deep;
            the message is one clause, with the line where there is one.
    """
    if len(text) > MOST_CHARACTERS:
        raise ValueError(f"has {len(text)} characters, at most {MOST_CHARACTERS} are read")
    plain = _TOKEN.sub(_blank, text.removeprefix("\ufeff"))
    try:
        return json.loads(plain)
    except json.JSONDecodeError as error:
        raise ValueError(f"line {error.lineno}: {error.msg.lower()}") from error
    except RecursionError as error:
        raise ValueError("is nested too deep") from error


def _blank(found: re.Match[str]) -> str:
    token = found.group()
    if token.startswith('"'):
        return token
    if token.startswith("/*") and (len(token) < _SHORTEST or not token.endswith("*/")):
        line = found.string.count("\n", 0, found.start()) + 1
        raise ValueError(f"line {line}: a comment is never closed")
    return re.sub(r"[^\n]", " ", token)  # lines stay where they were
