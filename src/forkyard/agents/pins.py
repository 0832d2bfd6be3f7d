"""What is installed for each agent, read from the data beside this module.

Each file in `recipes` says which published archives make an agent run, each with its hash. They
are made anew by the project's `./dev pin-agents`, never by hand but for versions.
"""

from __future__ import annotations

import json
from importlib import resources

from forkyard.agents.interface import Package, Recipe


def pinned(driver: str) -> Recipe:
    """Read one agent's recipe."""
    file = resources.files("forkyard.agents") / "recipes" / f"{driver.replace('-', '_')}.json"
    return recipe_of(file.read_text(encoding="utf-8"))


def recipe_of(text: str) -> Recipe:
    """Read a recipe's text; it is ours, so anything strange in it is a bug."""
    found = json.loads(text)
    return Recipe(
        version=found["version"],
        program=found["program"],
        library=found.get("library", ""),
        needs=found.get("needs", ""),
        packages=tuple(
            Package(
                registry=one["registry"],
                name=one["name"],
                version=one["version"],
                file=one["file"],
                sha512=one["sha512"],
                sha256=one.get("sha256", ""),
                place=one.get("place", "."),
                strip=one.get("strip", 1),
                keep=tuple(one.get("keep", ())),
            )
            for one in found["packages"]
        ),
    )
