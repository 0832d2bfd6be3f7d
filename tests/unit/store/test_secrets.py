"""Secrets at rest: sealed, bound to their name, and damage told without the value."""

from __future__ import annotations

import json
import shutil
import stat
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forkyard.base.clock import SystemClock
from forkyard.errors import ConfigError, ForkyardError, NotFoundError, StoreError
from forkyard.model.secret import LEAST_BYTES, MOST_BYTES, is_secret_name, value_problem
from forkyard.store.secrets import Secrets

NAME = "ANTHROPIC_API_KEY"
VALUE = "sk-ant-api03-c4n4ry-Zq7_x"


def make(folder: Path) -> Secrets:
    """Give the secrets of a state directory."""
    return Secrets(folder / "secrets", SystemClock())


def everything(folder: Path) -> bytes:
    """Read every file below a folder."""
    return b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())


def test_value_comes_back_when_opened_by_a_later_process(tmp_path: Path) -> None:
    """What was set is there for whoever opens the same directory, and only under its name."""
    make(tmp_path).set(NAME, VALUE)

    assert make(tmp_path).get(NAME) == VALUE
    assert make(tmp_path).values() == {NAME: VALUE}
    with pytest.raises(NotFoundError):
        make(tmp_path).get("OPENAI_API_KEY")


def test_disk_holds_no_part_of_the_value_when_set(tmp_path: Path) -> None:
    """Neither the value nor its middle is in any file, and the files are private."""
    make(tmp_path).set(NAME, VALUE)

    kept = everything(tmp_path)
    assert VALUE.encode() not in kept
    assert VALUE.encode()[8:18] not in kept
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.rglob("*")}
    assert modes == {"secrets": 0o700, "key": 0o600, f"{NAME}.json": 0o600}


def test_list_tells_nothing_of_the_value_when_it_changes(tmp_path: Path) -> None:
    """A listing holds the name, a random id and the time: the same value gives another id."""
    secrets = make(tmp_path)
    first = secrets.set(NAME, VALUE)
    second = secrets.set(NAME, VALUE)

    assert first.id != second.id
    assert secrets.list() == (second,)


def test_sealing_is_fresh_when_the_same_value_is_set_twice(tmp_path: Path) -> None:
    """Equal values cannot be told from what lies on the disk."""
    secrets = make(tmp_path)
    secrets.set("FIRST", VALUE)
    secrets.set("SECOND", VALUE)
    documents = [
        json.loads((tmp_path / f"secrets/{name}.json").read_text()) for name in ("FIRST", "SECOND")
    ]

    assert documents[0]["nonce"] != documents[1]["nonce"]
    assert documents[0]["sealed"] != documents[1]["sealed"]


def test_secret_is_gone_when_deleted(tmp_path: Path) -> None:
    """Deleting twice is told; the others stay."""
    secrets = make(tmp_path)
    secrets.set("FIRST", VALUE)
    secrets.set("SECOND", VALUE)
    secrets.delete("FIRST")

    assert secrets.values() == {"SECOND": VALUE}
    with pytest.raises(NotFoundError):
        secrets.delete("FIRST")


def _rename(folder: Path) -> None:
    shutil.copy(folder / "OTHER.json", folder / f"{NAME}.json")


def _swap(folder: Path) -> None:
    path = folder / f"{NAME}.json"
    other = json.loads((folder / "OTHER.json").read_text())
    path.write_text(json.dumps({**other, "name": NAME}))


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda folder: (folder / f"{NAME}.json").write_bytes(b"\x00\xff"), "is damaged"),
        (lambda folder: (folder / f"{NAME}.json").write_bytes(b"[]"), "is damaged"),
        (lambda folder: (folder / f"{NAME}.json").write_bytes(b""), "is damaged"),
        (_rename, "is damaged"),
        (_swap, "was changed"),
        (lambda folder: (folder / "key").write_bytes(b"k" * 32), "another key"),
        (lambda folder: (folder / "key").write_bytes(b"k" * 31), "31 bytes, 32 expected"),
        (lambda folder: (folder / "key").unlink(), "is gone"),
        (lambda folder: (folder / "key").chmod(0o644), "others may read"),
    ],
)
def test_damage_is_told_when_a_file_was_changed(
    tmp_path: Path, damage: object, reason: str
) -> None:
    """Whatever was changed on disk, the message says what and holds nothing of the value."""
    secrets = make(tmp_path)
    secrets.set(NAME, VALUE)
    secrets.set("OTHER", "another-value-1234")
    damage(tmp_path / "secrets")  # type: ignore[operator]

    with pytest.raises(StoreError) as caught:
        make(tmp_path).get(NAME)

    assert reason in caught.value.message
    assert "c4n4ry" not in repr(caught.value) + str(caught.value.hint)
    assert caught.value.__cause__ is None
    assert NAME not in make(tmp_path).values()


def test_listing_goes_on_when_one_file_is_damaged(tmp_path: Path) -> None:
    """One that cannot be opened is listed with its trouble, the others as ever."""
    secrets = make(tmp_path)
    secrets.set("GOOD", VALUE)
    (tmp_path / "secrets/BAD.json").write_text("{")
    (tmp_path / "secrets/.GOOD.json.77.new").write_text("left by a crash")

    assert [(row.name, row.trouble) for row in secrets.list()] == [
        ("BAD", "its file is damaged"),
        ("GOOD", None),
    ]


def test_key_is_not_made_anew_when_secrets_wait_for_the_old_one(tmp_path: Path) -> None:
    """A lost key is told, never replaced silently; once the secrets are deleted one is made."""
    secrets = make(tmp_path)
    secrets.set(NAME, VALUE)
    (tmp_path / "secrets/key").unlink()

    with pytest.raises(StoreError, match="is gone"):
        secrets.set("OTHER", VALUE)
    secrets.delete(NAME)
    secrets.set("OTHER", VALUE)

    assert secrets.get("OTHER") == VALUE


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("short", "has 5 bytes"),
        ("x" * (MOST_BYTES + 1), "are the most"),
        ("with\0nul-in-it", "NUL"),
        ("         \n        ", "besides white space"),
        ("line-end-of-a-file\n ", None),
        ("trailing-space ", "white space"),
        ("lone-\ud800-surrogate", "UTF-8"),
        ("x" * MOST_BYTES, None),
        ("x" * LEAST_BYTES, None),
    ],
)
def test_value_is_refused_when_it_cannot_be_kept_or_masked(
    tmp_path: Path, value: str, reason: str | None
) -> None:
    """Each rule has its reason, which names sizes and never the value."""
    problem = value_problem(value)

    if reason is None:
        assert problem is None
        return
    assert problem is not None
    assert reason in problem
    with pytest.raises(ConfigError) as caught:
        make(tmp_path).set(NAME, value)
    assert value not in caught.value.message
    assert not (tmp_path / "secrets").exists()


@pytest.mark.parametrize("name", ["", "../key", "1ST", "a b", "x" * 65, "key/x", "ä", "A\n"])
def test_name_is_refused_when_it_breaks_the_rule(tmp_path: Path, name: str) -> None:
    """No name leads out of the directory, and a refused one is not repeated: it may be a value."""
    secrets = make(tmp_path)

    for call in (secrets.get, secrets.delete, lambda one: secrets.set(one, VALUE)):
        with pytest.raises(ForkyardError) as caught:
            call(name)
        assert caught.value.exit_code == 2
    assert not is_secret_name(name)
    assert not (tmp_path / "secrets").exists()


@settings(max_examples=25, deadline=None)
@given(st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=8, max_size=60))
def test_any_text_comes_back_when_it_is_a_value(
    tmp_path_factory: pytest.TempPathFactory, value: str
) -> None:
    """Every value that the rules let through is given back exactly."""
    if value_problem(value) is None:
        folder = tmp_path_factory.mktemp("s")
        make(folder).set(NAME, value)
        assert make(folder).get(NAME) == value


def test_values_open_with_the_new_key_alone_when_it_was_changed(tmp_path: Path) -> None:
    """The old key opens nothing any more, and what a secret is called stays."""
    store = make(tmp_path)
    store.set(NAME, VALUE)
    store.set("OTHER", VALUE + "2")
    before, old = store.list(), (tmp_path / "secrets" / "key").read_bytes()

    assert store.rotate_key() == 2

    assert store.list() == before
    assert make(tmp_path).values() == {NAME: VALUE, "OTHER": VALUE + "2"}
    assert (tmp_path / "secrets" / "key").read_bytes() != old
    assert sorted(path.name for path in (tmp_path / "secrets").iterdir()) == [
        f"{NAME}.json",
        "OTHER.json",
        "key",
    ]
    (tmp_path / "secrets" / "key").write_bytes(old)
    assert make(tmp_path).values() == {}


def test_key_stays_when_a_value_would_be_lost(tmp_path: Path) -> None:
    """A damaged secret is named, and nothing is changed."""
    store = make(tmp_path)
    store.set(NAME, VALUE)
    store.set("OTHER", VALUE)
    damaged = tmp_path / "secrets" / "OTHER.json"
    damaged.write_text(damaged.read_text().replace("sealed", "healed"))
    before = everything(tmp_path)

    with pytest.raises(StoreError, match="OTHER"):
        store.rotate_key()

    assert everything(tmp_path) == before


def test_nothing_is_made_when_there_is_no_secret_to_seal(tmp_path: Path) -> None:
    """A key is made with the first secret."""
    assert make(tmp_path).rotate_key() == 0
    assert not (tmp_path / "secrets").exists()
