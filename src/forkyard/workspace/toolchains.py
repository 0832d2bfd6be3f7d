"""Interpreters and toolchains outside ``/usr``, found from the repository's own files.

A virtual environment points into pyenv's or uv's folder in the user's home; `.nvmrc`, `go.mod` or
`rust-toolchain.toml` name a version that lies there. Each such folder is shown read-only at its
own path, one by one. The home itself never is, nor anything that holds or lies in a folder of
secrets.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from forkyard.model.workspace import ReadOnlyMount
from forkyard.workspace.owners import home_of

SECRET_NAMES = frozenset(
    {
        ".aws",
        ".azure",
        ".claude",
        ".codex",
        ".config",
        ".docker",
        ".gcloud",
        ".git-credentials",
        ".gnupg",
        ".kube",
        ".mozilla",
        ".netrc",
        ".npmrc",
        ".password-store",
        ".pki",
        ".pypirc",
        ".ssh",
        ".vault-token",
    }
)
_SHOWN = ("/usr",)
_SYSTEM = ("/boot", "/dev", "/etc", "/proc", "/root", "/run", "/sys", "/tmp", "/var")  # noqa: S108 - paths to refuse, not to write
_VIRTUAL_ENVIRONMENTS = (".venv", "venv", "env", ".virtualenv")
_LONGEST_FILE_BYTES = 256 * 1024
_GO_TOOLCHAIN = re.compile(r"^toolchain\s+(go[0-9][0-9A-Za-z.]*)\s*$", re.MULTILINE)
_MOST_LINKS = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Toolchains:
    """What a repository needs of this machine besides ``/usr``."""

    mounts: tuple[ReadOnlyMount, ...] = ()
    path: tuple[str, ...] = ()
    """Folders to put before PATH."""
    notes: tuple[str, ...] = ()
    """What was asked for and cannot be shown, and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wish:
    folder: Path
    reason: str
    on_path: str | None = "bin"
    """Subfolder that goes before PATH; None: the repository's files point there themselves."""


def find_toolchains(repository: str, *, home: str | None = None) -> Toolchains:
    """Look for what the repository's own files ask for.

    Args:
        repository: Its absolute path on this machine, links resolved.
        home: The home of whoever works in it; by default that of the folder's owner.

    Returns:
        Mounts with the reason for each; nothing is changed anywhere.
    """
    root = Path(repository)
    owner = Path(home or home_of(root.stat().st_uid))
    mounts: dict[str, ReadOnlyMount] = {}
    path: list[str] = []
    notes: list[str] = []
    for wish in _wishes(root, owner, notes):
        if not wish.folder.is_dir():
            notes.append(f"{wish.reason} asks for {wish.folder}, which is not there")
            continue
        source = wish.folder.resolve()
        if _is_shown(source, root):
            continue
        refusal = _refusal(source, owner)
        if refusal is not None:
            notes.append(f"{wish.reason} asks for {source}, which is not shown: {refusal}")
            continue
        for target in dict.fromkeys((str(source), str(wish.folder))):
            mounts[target] = ReadOnlyMount(source=str(source), target=target, reason=wish.reason)
        if wish.on_path is not None:
            path.append(str(wish.folder / wish.on_path))
    return Toolchains(
        mounts=tuple(mounts[target] for target in sorted(mounts)),
        path=tuple(dict.fromkeys(path)),
        notes=tuple(notes),
    )


def _wishes(root: Path, home: Path, notes: list[str]) -> Iterator[_Wish]:
    yield from _virtual_environments(root)
    yield from _pyenv(root, home)
    yield from _node(root, home, notes)
    yield from _rust(root, home)
    yield from _go(root, home)


def _virtual_environments(root: Path) -> Iterator[_Wish]:
    for name in _VIRTUAL_ENVIRONMENTS:
        settings = _text(root / name / "pyvenv.cfg")
        if settings is None:
            continue
        reason = f"{name}/pyvenv.cfg"
        for line in settings.splitlines():
            key, _, value = line.partition("=")
            if key.strip() == "home" and value.strip().startswith("/"):
                yield _Wish(folder=_prefix(Path(value.strip())), reason=reason, on_path=None)
        for link in _links(root / name / "bin" / "python"):
            yield _Wish(folder=_prefix(link.parent), reason=reason, on_path=None)


def _links(path: Path) -> Iterator[Path]:
    """Give each absolute path that a chain of links goes through."""
    for _ in range(_MOST_LINKS):
        if not path.is_symlink():
            return
        path = Path(os.path.normpath(path.parent / path.readlink()))
        yield path


def _prefix(folder: Path) -> Path:
    """Give an installation's root from its folder of programs."""
    return folder.parent if folder.name == "bin" else folder


def _pyenv(root: Path, home: Path) -> Iterator[_Wish]:
    for version in (_text(root / ".python-version") or "").split():
        folder = home / ".pyenv" / "versions"
        found = _newest(folder, version)
        if found is not None:
            yield _Wish(folder=found, reason=".python-version")


def _node(root: Path, home: Path, notes: list[str]) -> Iterator[_Wish]:
    folder = home / ".nvm" / "versions" / "node"
    for name in (".nvmrc", ".node-version"):
        version = (_text(root / name) or "").strip()
        if not version or not folder.is_dir():
            continue
        number = version.removeprefix("v")
        if not number[:1].isdigit():
            notes.append(f"{name} asks for {version!r}; only version numbers are looked up")
            continue
        found = _newest(folder, f"v{number}")
        if found is not None:
            yield _Wish(folder=found, reason=name)


def _rust(root: Path, home: Path) -> Iterator[_Wish]:
    toolchains = home / ".rustup" / "toolchains"
    if not toolchains.is_dir():
        return
    wanted = {
        "rust-toolchain.toml": _channel(_text(root / "rust-toolchain.toml")),
        "rust-toolchain": _channel(_text(root / "rust-toolchain")),
    }
    if (root / "Cargo.toml").exists():
        settings = _toml(_text(home / ".rustup" / "settings.toml"))
        default = settings.get("default_toolchain")
        wanted["Cargo.toml"] = default if isinstance(default, str) else None
    for reason, channel in wanted.items():
        if channel is not None:
            found = _newest(toolchains, channel)
            if found is not None:
                yield _Wish(folder=found, reason=reason)
                return


def _channel(text: str | None) -> str | None:
    if text is None:
        return None
    table = _toml(text).get("toolchain")
    if isinstance(table, dict):
        channel = table.get("channel")
        return channel if isinstance(channel, str) else None
    line = text.strip()
    return line if re.fullmatch(r"[A-Za-z0-9._-]+", line) else None


def _go(root: Path, home: Path) -> Iterator[_Wish]:
    found = _GO_TOOLCHAIN.search(_text(root / "go.mod") or "")
    if found is None:
        return
    version = found.group(1)
    candidates = (
        *sorted((home / "go/pkg/mod/golang.org").glob(f"toolchain@*-{version}.*")),
        home / "sdk" / version,
    )
    for folder in candidates:
        if folder.is_dir():
            yield _Wish(folder=folder, reason="go.mod")
            return


def _newest(folder: Path, version: str) -> Path | None:
    """Find a version's folder: of that very name, or the newest that starts with it."""
    if "/" in version or version in {"", ".", ".."}:
        return None
    if (folder / version).is_dir():
        return folder / version
    with suppress(OSError):
        starting = [
            path
            for path in folder.iterdir()
            if path.name.startswith((f"{version}.", f"{version}-"))
        ]
        if starting:
            return max(starting, key=lambda path: [int(n) for n in re.findall(r"\d+", path.name)])
    return None


def _is_shown(folder: Path, repository: Path) -> bool:
    shown = (*(Path(path) for path in _SHOWN), repository)
    return any(folder.is_relative_to(path) for path in shown)


def _refusal(folder: Path, home: Path) -> str | None:
    """Say why a folder must not be shown; None where it may."""
    if home.is_relative_to(folder):
        return "it is a home or holds one"
    secret = SECRET_NAMES.intersection(folder.parts)
    if secret:
        return f"it lies in {min(secret)}"
    within_home = folder.is_relative_to(home)
    if within_home and len(folder.relative_to(home).parts) < 2:  # noqa: PLR2004 - home/x/y
        return "it is too much of a home"
    if not within_home and any(folder.is_relative_to(path) for path in _SYSTEM):
        return "it is part of the system"
    return _holds_too_much(folder)


def _holds_too_much(folder: Path) -> str | None:
    if len(folder.parts) < 3:  # noqa: PLR2004 - /, opt, name
        return "it is too much of this machine"
    try:
        held = SECRET_NAMES.intersection(path.name for path in folder.iterdir())
    except OSError as error:
        return error.strerror or "it cannot be read"
    return f"it holds {min(held)}" if held else None


def _text(path: Path) -> str | None:
    try:
        if not path.is_file() or path.stat().st_size > _LONGEST_FILE_BYTES:
            return None
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None


def _toml(text: str | None) -> dict[str, object]:
    try:
        return tomllib.loads(text or "")
    except tomllib.TOMLDecodeError:
        return {}
