r"""Secrets at rest: one sealed file per name, and the key that seals them beside it.

On-disk format (version 1), below `secrets/` in the state directory::

    key          32 random bytes, mode 0600
    key.new      the same, while values are sealed anew: each then opens with one of the two
    NAME.json    {"format", "name", "id", "set_at", "nonce", "sealed"}, mode 0600

A value is sealed with AES-256-GCM under a random nonce; format, name, id and time are bound to it,
so that a file under another name, or one that was put together from two, does not open. Whoever
reads the whole directory can open everything: see docs/secrets.md for what this protects from.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import json
import os
import secrets
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from forkyard.base.clock import Clock
from forkyard.base.durable import failpoint, make_directory, sync_directory, write_file
from forkyard.errors import ConfigError, NotFoundError, StoreError
from forkyard.model.secret import NAME_RULE, Secret, is_secret_name, value_problem

FORMAT = "forkyard-secret/1"
KEY_NAME = "key"
NEW_KEY_NAME = "key.new"
SUFFIX = ".json"

_KEY_BYTES = 32
_NONCE_BYTES = 12
_MOST_FILE_BYTES = 64 * 1024
_OTHERS = 0o077


class _DamagedError(Exception):
    """A secret's file holds no value that any key could open."""


class Secrets:
    """The secrets of one installation. One process at a time: the server, which holds the lock.

    Every call may block on the disk. No message, log line or error holds anything of a value.
    """

    def __init__(self, directory: Path, clock: Clock) -> None:
        """Keep where they lie; nothing is made before the first is set."""
        self._directory = directory
        self._clock = clock

    def set(self, name: str, value: str) -> Secret:
        """Keep a value under a name, in place of an earlier one.

        Raises:
            ConfigError: Name or value cannot be taken.
            StoreError: The disk, or the key that earlier secrets are sealed with.

        Durability:
            It is on disk when this returns; a reader sees the old or the new value.
        """
        _check_name(name)
        problem = value_problem(value)
        if problem is not None:
            raise ConfigError(
                f"cannot set secret {name}: {problem}", hint="See `forkyard secret set --help`."
            )
        row = Secret(name=name, id=f"sec_{secrets.token_hex(6)}", set_at=self._clock.now())
        try:
            make_directory(self._directory)
            self._directory.chmod(0o700)
            self._seal(row, value, self._key(may_make=True))
        except OSError as error:
            raise StoreError(
                f"cannot keep secret {name}: {error.strerror or type(error).__name__}",
                hint="Free space on the file system of the state directory.",
            ) from None
        return row

    def get(self, name: str) -> str:
        """Give a value.

        Raises:
            NotFoundError: There is none of that name.
            StoreError: It cannot be opened: damaged, changed, or its key is gone.
        """
        document = self._document(name)
        if document is None:
            raise _not_there(name)
        row = _row(name, document)
        if row.trouble is not None:
            raise _unreadable(name, row.trouble)
        try:
            for key in self._keys():
                value = _opened(row, document, key)
                if value is not None:
                    return value
            # The key may have been changed between the two looks.
            document = self._document(name) or {}
            value = _opened(_row(name, document), document, self._key(may_make=False))
        except _DamagedError:
            raise _unreadable(name, "its file is damaged") from None
        if value is None:
            raise _unreadable(name, "its file was changed, or is sealed with another key")
        return value

    def rotate_key(self) -> int:
        """Make a new key and seal every value with it; the old key is gone afterwards.

        Returns:
            How many values there are.

        Raises:
            StoreError: The disk; or a value cannot be opened, so it would be lost: nothing changes.

        Durability:
            Killed at any line, every value opens with one of the two keys that are there, and
            `finish_rotation` goes on from there.
        """
        self.finish_rotation()
        names = self._names()
        if not names:
            return 0
        for name in names:
            self.get(name)
        try:
            write_file(self._directory / NEW_KEY_NAME, secrets.token_bytes(_KEY_BYTES))
        except OSError as error:
            raise StoreError(f"cannot keep a new key: {error.strerror}") from None
        failpoint("K01")
        self.finish_rotation()
        return len(names)

    def finish_rotation(self) -> None:
        """Go on with a change of the key that was cut short; nothing where there is none.

        Raises:
            StoreError: The disk.
        """
        key = self._new_key()
        if key is None:
            return
        old = self._key(may_make=False)
        try:
            for name in self._names():
                self._seal_anew(name, old, key)
                failpoint("K02")
            (self._directory / NEW_KEY_NAME).rename(self._directory / KEY_NAME)
            failpoint("K03")
            sync_directory(self._directory)
        except OSError as error:
            raise StoreError(f"cannot change the key of the secrets: {error.strerror}") from None

    def list(self) -> tuple[Secret, ...]:
        """List secrets by name, those that are damaged too; no value is opened.

        Raises:
            StoreError: The directory cannot be read.
        """
        found = []
        for name in self._names():
            document = self._document(name)
            if document is not None:
                found.append(_row(name, document))
        return tuple(found)

    def delete(self, name: str) -> None:
        """Remove a secret. Its blocks are freed, not overwritten.

        Raises:
            NotFoundError: There is none of that name.
            StoreError: The disk.

        Durability:
            The name is gone from the disk when this returns.
        """
        _check_name(name)
        try:
            self._path(name).unlink()
            sync_directory(self._directory)
        except FileNotFoundError:
            raise _not_there(name) from None
        except OSError as error:
            raise StoreError(f"cannot delete secret {name}: {error.strerror}") from None

    def values(self) -> dict[str, str]:
        """Give every value that can be opened: for masking, which cannot wait for a repair."""
        found = {}
        for row in self.list():
            try:
                found[row.name] = self.get(row.name)
            except (StoreError, NotFoundError):
                continue
        return found

    def _seal(self, row: Secret, value: str, key: bytes) -> None:
        nonce = secrets.token_bytes(_NONCE_BYTES)
        sealed = AESGCM(key).encrypt(nonce, value.encode(), _bound(row))
        document = {
            "format": FORMAT,
            "name": row.name,
            "id": row.id,
            "set_at": row.set_at,
            "nonce": base64.b64encode(nonce).decode(),
            "sealed": base64.b64encode(sealed).decode(),
        }
        write_file(self._path(row.name), json.dumps(document).encode() + b"\n")

    def _seal_anew(self, name: str, old: bytes, key: bytes) -> None:
        """Seal a value with the new key; one that neither opens stays as it is."""
        document = self._document(name) or {}
        row = _row(name, document)
        if row.trouble is not None:
            return
        with contextlib.suppress(_DamagedError):
            if _opened(row, document, key) is None:
                value = _opened(row, document, old)
                if value is not None:
                    self._seal(row, value, key)

    def _path(self, name: str) -> Path:
        return self._directory / f"{name}{SUFFIX}"

    def _names(self) -> tuple[str, ...]:
        try:
            entries = [path.name for path in self._directory.iterdir()]
        except FileNotFoundError:
            return ()
        except OSError as error:
            raise StoreError(f"cannot list secrets: {error.strerror}") from None
        names = [entry.removesuffix(SUFFIX) for entry in entries if entry.endswith(SUFFIX)]
        return tuple(sorted(name for name in names if is_secret_name(name)))

    def _document(self, name: str) -> dict[str, str] | None:
        """Read a secret's file; None: there is none; empty: damaged."""
        _check_name(name)
        content = _read(self._path(name), f"secret {name}")
        if content is None:
            return None
        try:
            document = json.loads(content)
        except ValueError:
            return {}
        if not isinstance(document, dict):
            return {}
        return {str(key): item for key, item in document.items() if isinstance(item, str)}

    def _keys(self) -> tuple[bytes, ...]:
        new = self._new_key()
        key = self._key(may_make=False)
        return (key,) if new is None else (key, new)

    def _new_key(self) -> bytes | None:
        content = _read(
            self._directory / NEW_KEY_NAME, "the new key of the secrets", is_private=True
        )
        return content if content is not None and len(content) == _KEY_BYTES else None

    def _key(self, *, may_make: bool) -> bytes:
        path = self._directory / KEY_NAME
        content = _read(path, "the key of the secrets", is_private=True)
        if content is None and may_make and not self._names():
            content = secrets.token_bytes(_KEY_BYTES)
            write_file(path, content)
        if content is None:
            raise StoreError(
                f"cannot open any secret: the key file {path} is gone",
                hint="Put it back, or delete every secret with `forkyard secret delete NAME` and"
                " set them anew.",
            )
        if len(content) != _KEY_BYTES:
            raise StoreError(
                f"cannot open any secret: the key file {path} has {len(content)} bytes,"
                f" {_KEY_BYTES} expected",
                hint="Put the right one back, or remove it and every secret, and set them anew.",
            )
        return content


def _opened(row: Secret, document: dict[str, str], key: bytes) -> str | None:
    """Open a value; None: this key does not open it.

    Raises:
        _DamagedError: Its file is damaged.
    """
    try:
        nonce = base64.b64decode(document["nonce"], validate=True)
        sealed = base64.b64decode(document["sealed"], validate=True)
        return AESGCM(key).decrypt(nonce, sealed, _bound(row)).decode()
    except InvalidTag:
        return None
    except (KeyError, ValueError, binascii.Error):
        raise _DamagedError from None


def _read(path: Path, what: str, *, is_private: bool = False) -> bytes | None:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StoreError(f"cannot read {what}: {error.strerror}") from None
    with os.fdopen(descriptor, "rb") as file:
        mode = os.fstat(descriptor).st_mode
        if is_private and mode & _OTHERS:
            raise StoreError(
                f"cannot use {what}: others may read {path} (mode {mode & 0o777:o})",
                hint=f"Run `chmod 600 {path}`, and set the secrets anew if others could.",
            )
        return file.read(_MOST_FILE_BYTES)


def _row(name: str, document: dict[str, str]) -> Secret:
    if document.get("format", FORMAT) != FORMAT:
        return Secret(name=name, trouble="its file has a format that this version does not know")
    if document.get("name") != name or not {"id", "set_at", "nonce", "sealed"} <= document.keys():
        return Secret(name=name, trouble="its file is damaged")
    return Secret(name=name, id=document["id"], set_at=document["set_at"])


def _bound(row: Secret) -> bytes:
    return f"{FORMAT}\0{row.name}\0{row.id}\0{row.set_at}".encode()


def _check_name(name: str) -> None:
    if not is_secret_name(name):
        # The name is not told: a value may have been typed in its place.
        raise ConfigError(
            f"cannot use that as a secret's name: a name is {NAME_RULE}",
            hint="Give the name only; the value is asked for, or read from stdin.",
        )


def _not_there(name: str) -> NotFoundError:
    return NotFoundError(
        f"cannot find secret {name}: there is none of that name",
        hint=f"See `forkyard secret list`, or set it with `forkyard secret set {name}`.",
    )


def _unreadable(name: str, reason: str) -> StoreError:
    return StoreError(
        f"cannot open secret {name}: {reason}",
        hint=f"Set it again with `forkyard secret set {name}`.",
    )
