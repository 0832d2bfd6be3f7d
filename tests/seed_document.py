"""The first seed's document, as it was written: its template, its agents and their prompt."""

from __future__ import annotations

import re
from pathlib import Path

DOCUMENT = Path(__file__).parent / "e2e" / "seed" / "parallel-agents.txt"


def template() -> bytes:
    """Give the bytes of its Template, from `spec:` to the empty line before its next command."""
    content = DOCUMENT.read_bytes()
    begin = content.index(b"\nspec:\n") + 1
    return content[begin : content.index(b"\n\ncordium create template", begin) + 1]


def prompt() -> str:
    """Give the prompt of its program."""
    found = re.search(r"const prompt = `([^`]*)`", DOCUMENT.read_text())
    assert found is not None
    return found[1]


def agents() -> dict[str, str]:
    """Give the command of each agent of its program, by name."""
    text = DOCUMENT.read_text()
    table = text[text.index("var agents = []agent{") : text.index("func main()")]
    return dict(re.findall(r'\{"([^"]*)", `([^`]*)`\}', table))
