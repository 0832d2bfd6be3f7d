"""The one thing that every agent is asked for beside its work: what it knows to be lacking.

The answer is the agent's claim and is shown as one. It is asked for at the end of the prompt,
not in the repository's own instructions, which stay as they are.
"""

from __future__ import annotations

import re

from forkyard.agents.trajectory import Trajectory

REQUEST = (
    "When you are done, end your last message with a section `Known limitations:` that says in a"
    " few lines what is left undone, uncertain or untested. Write `Known limitations: none` when"
    " there is nothing to say."
)
LONGEST = 4000
"""Characters of it that are kept."""

_HEADING = re.compile(
    r"^[ \t]*(?:[#>*_-]+[ \t]*)*known limitations[ \t]*[*_]*[ \t]*(?::|$)[ \t]*[*_]*[ \t]*",
    re.IGNORECASE | re.MULTILINE,
)


def prompt_with_request(prompt: str) -> str:
    """Give the prompt as an agent gets it."""
    return f"{prompt.rstrip()}\n\n{REQUEST}\n"


def known_limitations(trajectory: Trajectory | None) -> str | None:
    """Give what an agent says of its work's limits; None: it states none.

    Args:
        trajectory: Its transcript; the last such section of its last words counts.
    """
    if trajectory is None or trajectory.final_text is None:
        return None
    found = list(_HEADING.finditer(trajectory.final_text))
    if not found:
        return None
    text = trajectory.final_text[found[-1].end() :].strip()
    return text[:LONGEST].rstrip() or None
