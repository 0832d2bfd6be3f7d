"""Reading a repository's devcontainer.json on this machine into the text of a template file."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import yaml

from forkyard.client.look import read_plain
from forkyard.errors import ConfigError, NotFoundError
from forkyard.wire.devcontainer import PLACES, KeyReport, import_devcontainer


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedTemplate:
    """A template file's text, and where it came from."""

    file: Path
    name: str | None
    """What the file calls itself, as a name."""
    text: str
    report: tuple[KeyReport, ...]


def import_template(place: Path) -> ImportedTemplate:
    """Read the devcontainer.json of a repository, or the named file.

    Args:
        place: The file, or a folder that holds one where the specification says.

    Raises:
        NotFoundError: There is none.
        ConfigError: It cannot be read.
    """
    place = place.absolute()
    file = place
    if place.is_dir():
        found = next((place / name for name in PLACES if (place / name).exists()), None)
        if found is None:
            raise NotFoundError(
                f"cannot import from {place}: it has neither {PLACES[0]} nor {PLACES[1]}",
                hint="Name the file itself, or write a template file (docs/template-file.md).",
            )
        file = found
    text = read_plain(file)
    if text is None:
        raise ConfigError(
            f"cannot read {file}: it is missing, no ordinary file, or larger than 1 MiB",
            hint="Name a devcontainer.json.",
        )
    repository = _repository(file)
    beside = file.parent.parent if file.parent.name == ".devcontainer" else file.parent
    made = import_devcontainer(
        text,
        str(file),
        folder=str(file.parent),
        root=repository or str(beside),
        repository=repository,
        real=os.path.realpath,
    )
    return ImportedTemplate(
        file=file,
        name=made.name,
        text=yaml.safe_dump(made.document, sort_keys=False, width=100),
        report=tuple(made.report),
    )


def _repository(file: Path) -> str | None:
    return next((str(one) for one in file.parents if (one / ".git").exists()), None)
