"""Folders of agents that nothing needs any more: of other versions, and of killed installations."""

from __future__ import annotations

from pathlib import Path

from forkyard.agents.pins import pinned
from forkyard.agents.registry import driver_names
from forkyard.base.removal import remove_tree
from forkyard.config import Layout
from forkyard.workspace.agent_contents import CONTENTS
from forkyard.workspace.agent_install import NEW, digest_of, recipe_of


def outdated(layout: Layout) -> tuple[Path, ...]:
    """List the folders of installed agents that no driver of this version is pinned to."""
    recipes = {name: recipe_of(name) for name in driver_names()} | {"npm": pinned("npm")}
    current = {
        f"{name}-{recipe.version}-{digest_of(recipe)}"
        for name, recipe in recipes.items()
        if recipe is not None
    }
    found = sorted(layout.agents.iterdir()) if layout.agents.is_dir() else []
    return tuple(
        one
        for one in found
        if one.name not in current and not one.name.startswith(NEW) and (one / CONTENTS).is_file()
    )


def sweep(layout: Layout) -> tuple[str, ...]:
    """Remove what an installation that was killed left behind, at the server's start."""
    leftovers = sorted(layout.agents.glob(f"{NEW}*"))
    for one in leftovers:
        remove_tree(one, layout.trash)
    return tuple(f"agents/{one.name}" for one in leftovers)
