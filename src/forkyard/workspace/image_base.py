"""What every workspace of an image needs above the image's own layers, as part of its base layer.

The sandbox's user, the workspace's folder and the user's home, and a place for each thing that is
mounted inside, so that no start writes into the image's tree. Nothing of the image is followed:
where it has a link in the way of one of these places, a folder or file of ours hides the link.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from forkyard.model.ids import LayerId
from forkyard.model.image import Image
from forkyard.model.workspace import (
    USER_HOME,
    USER_ID,
    USER_NAME,
    WORKSPACE_ROOT,
    ImageRoot,
)
from forkyard.shim.ids import STORAGE_FIRST_ID, STORAGE_USER_ID
from forkyard.workspace.image_host import GENERATED_MOUNTS
from forkyard.workspace.layers import OPAQUE, Layers

ACCOUNTS_BYTES = 1024**2
PLACES = ("/dev", "/proc", "/sys", "/tmp", "/var/tmp", "/etc")  # noqa: S108 - names inside
_STICKY = ("/tmp", "/var/tmp")  # noqa: S108 - as above
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,31}")
_HOME = re.compile(r"(/[A-Za-z0-9_][A-Za-z0-9_.-]*){1,8}")
_NO_HOME = ("/bin", "/boot", "/dev", "/etc", "/lib", "/proc", "/sbin", "/sys", "/tmp", "/usr")  # noqa: S108 - as above
_OURS = ("HOME", "USER", "LOGNAME", "SHELL", "HOSTNAME", "TERM")
"""Variables of an image that say something of its own user or machine."""

PROFILES = "/etc/profile.d"
_PROFILE = b"""\
# A login shell begins with the PATH that it was given: what the image's own programs are found by.
_given=$({ tr '\\0' '\\n' <"/proc/$$/environ" | sed -n 's/^PATH=//p'; } 2>/dev/null)
[ -z "$_given" ] || PATH=$_given
unset _given
"""
"""Agents run commands in login shells, where /etc/profile forgets the image's PATH."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageBase:
    """What a workspace of an image starts with."""

    root: ImageRoot
    variables: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Account:
    name: str
    home: str
    shell: str


def lay_image_base(
    root: Path, layers: Layers, image: Image, say: Callable[[str], None]
) -> ImageBase:
    """Begin the base layer of an image's workspace; the workspace's folder is empty and there.

    Args:
        root: Of the half-made layer.
        layers: To look the image's own files up.
        image: Its layers are here.
        say: Told what a person should know.
    """
    laying = _Laying(root, layers, image.layers, say)
    for place in PLACES:
        laying.folder(place)
    for place in _STICKY:
        (root / place.lstrip("/")).chmod(0o1777)
    for target in GENERATED_MOUNTS:
        laying.file(target, b"")
    profiles = layers.lookup(image.layers, PROFILES) if image.layers else None
    if profiles is not None and profiles.is_directory:
        laying.folder(PROFILES)
        laying.file(f"{PROFILES}/00-given-path.sh", _PROFILE)
    account = laying.account()
    # Ours is there in any case: histories are sealed with this machine's programs instead.
    for home in {account.home, USER_HOME}:
        laying.folder(home, is_users=True)
    laying.folder(WORKSPACE_ROOT, is_users=True)
    workspace = root / WORKSPACE_ROOT.lstrip("/")
    found = layers.lookup(image.layers, WORKSPACE_ROOT)
    if found is not None:
        # What the image has there would be mixed with the repository.
        os.setxattr(workspace, OPAQUE, b"y")
        say(f"the image's own {WORKSPACE_ROOT} is hidden")
    os.chown(workspace, STORAGE_USER_ID, STORAGE_USER_ID)
    workspace.chmod(0o755)
    variables = {name: value for name, value in image.variables.items() if name not in _OURS}
    variables |= {
        "HOME": account.home,
        "USER": account.name,
        "LOGNAME": account.name,
        "SHELL": account.shell,
    }
    return ImageBase(
        root=ImageRoot(reference=image.reference, digest=image.digest, user_home=account.home),
        variables=variables,
    )


class _Laying:
    """One base layer above an image's layers."""

    def __init__(
        self,
        root: Path,
        layers: Layers,
        below: tuple[LayerId, ...],
        say: Callable[[str], None],
    ) -> None:
        self._root = root
        self._layers = layers
        self._below = below
        self._say = say
        found = layers.lookup(below, "/") if below else None
        if found is not None:
            _like(root, found.facts)

    def folder(self, path: str, *, is_users: bool = False) -> None:
        """Repeat a folder and those above it as the image has them; make what it lacks."""
        place, inside = self._root, ""
        parts = path.strip("/").split("/")
        for number, part in enumerate(parts, start=1):
            inside, place = f"{inside}/{part}", place / part
            if place.is_dir():
                continue
            place.mkdir(mode=0o755)
            place.chmod(0o755)
            owner = STORAGE_USER_ID if is_users and number == len(parts) else STORAGE_FIRST_ID
            os.chown(place, owner, owner)
            found = self._layers.lookup(self._below, inside) if self._below else None
            if found is not None and found.is_directory:
                _like(place, found.facts)
            elif found is not None:
                self._say(f"the image's {inside} is no folder; one of ours hides it")

    def file(self, path: str, content: bytes, like: os.stat_result | None = None) -> None:
        place = self._root / path.lstrip("/")
        place.write_bytes(content)
        place.chmod(0o644)
        os.chown(place, STORAGE_FIRST_ID, STORAGE_FIRST_ID)
        if like is not None:
            _like(place, like)

    def account(self) -> _Account:
        """Find the user that commands run as among the image's accounts, or add it."""
        users = self._lines("/etc/passwd", "root:x:0:0:root:/root:/bin/sh")
        groups = self._lines("/etc/group", "root:x:0:")
        known = next((line for line in users if _field(line, 2) == str(USER_ID)), None)
        name = _field(known, 0) if known is not None else ""
        if known is not None and _NAME.fullmatch(name):
            return _Account(
                name=name, home=self._home(_field(known, 5)), shell=self._shell(_field(known, 6))
            )
        shell = self._shell("/bin/bash")
        name = _free(users, groups)
        users.append(f"{name}:x:{USER_ID}:{USER_ID}:{name}:{USER_HOME}:{shell}")
        self.file("/etc/passwd", _text(users))
        if not any(_field(line, 2) == str(USER_ID) for line in groups):
            groups.append(f"{name}:x:{USER_ID}:")
            self.file("/etc/group", _text(groups))
        return _Account(name=name, home=USER_HOME, shell=shell)

    def _lines(self, path: str, otherwise: str) -> list[str]:
        content = self._layers.read(self._below, path, ACCOUNTS_BYTES) if self._below else None
        text = otherwise if content is None else content.decode("utf-8", "surrogateescape")
        return [line for line in text.split("\n") if line]

    def _home(self, told: str) -> str:
        is_place = _HOME.fullmatch(told) and not any(
            told == top or told.startswith(f"{top}/") for top in _NO_HOME
        )
        if is_place and told not in ("/root", "/var", "/opt", "/home", WORKSPACE_ROOT):
            return told
        return USER_HOME

    def _shell(self, told: str) -> str:
        found = self._layers.lookup(self._below, told) if self._below and told else None
        is_shell = told.startswith("/") and not told.endswith(("nologin", "false"))
        return told if found is not None and is_shell else "/bin/sh"


def _field(line: str, number: int) -> str:
    fields = line.split(":")
    return fields[number] if number < len(fields) else ""


def _free(users: list[str], groups: list[str]) -> str:
    taken = {_field(line, 0) for line in (*users, *groups)}
    return USER_NAME if USER_NAME not in taken else f"{USER_NAME}{USER_ID}"


def _text(lines: list[str]) -> bytes:
    return ("\n".join(lines) + "\n").encode("utf-8", "surrogateescape")


def _like(place: Path, facts: os.stat_result) -> None:
    os.chown(place, facts.st_uid, facts.st_gid)
    place.chmod(stat.S_IMODE(facts.st_mode))
