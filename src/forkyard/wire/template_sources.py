"""What a template file says of images and repositories: where they come from, and the login."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Sequence

from forkyard.model.secret import NAME_RULE as SECRET_NAME_RULE
from forkyard.model.secret import is_secret_name
from forkyard.model.workspace import (
    REPOSITORY,
    WORKSPACE_ROOT,
    Credentials,
    ImageKind,
    ImageSource,
    RepositorySource,
)
from forkyard.wire.fields import Section, kind

IMAGE_HOST = "host"
URL_SCHEMES = ("https://", "http://", "ssh://", "git://")
MOST_DEPTH = 1_000_000

_IMAGE_FORMS = ("registry", "layout", "archive", "build")
_REFERENCE = re.compile(
    r"(?:[A-Za-z0-9.-]+(?::[0-9]{1,5})?/|\[[0-9A-Fa-f:]+\](?::[0-9]{1,5})?/)?"
    r"[a-z0-9]+(?:[._-]+[a-z0-9]+)*(?:/[a-z0-9]+(?:[._-]+[a-z0-9]+)*)*"
    r"(?::[A-Za-z0-9_][A-Za-z0-9._-]{0,127})?(?:@sha256:[0-9a-f]{64})?",
    re.ASCII,
)
_REVISION = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./+@-]{0,199}", re.ASCII)
_SECRETS_FOR_VALUES = "must be {fromSecret: NAME}; keep the value with `forkyard secret set NAME`"


def is_revision(text: str) -> bool:
    """Say whether a text may name a branch, tag or commit: nothing that git takes otherwise."""
    return (
        _REVISION.fullmatch(text) is not None
        and ".." not in text
        and "@{" not in text
        and "//" not in text
        and not text.endswith(("/", ".", ".lock"))
    )


def read_image(section: Section, folder: str | None) -> tuple[str, ImageSource | None]:
    """Read `image`: the words for people, and where it comes from; None for `host`."""
    node = section.node("image")
    if node is None:
        return IMAGE_HOST, None
    if not isinstance(node.value, dict):
        _check_word(section, node.value)
        return IMAGE_HOST, None
    below = section.section("image")
    if below is None:
        return IMAGE_HOST, None
    found: ImageSource | None = None
    given = [form for form in _IMAGE_FORMS if below.has(form)]
    for form in given:
        entry = below.section(form)
        if entry is not None:
            found = _image_form(ImageKind(form), entry, folder)
            entry.finish()
    below.asked.update(_IMAGE_FORMS)
    below.finish()
    if len(given) != 1:
        what = " and ".join(given) + " exclude each other" if given else "names no image"
        below.problem(None, f"{what}; give one of {', '.join(_IMAGE_FORMS)}, or `image: host`")
    if found is None:
        return IMAGE_HOST, None
    if found.kind is ImageKind.REGISTRY:
        return found.location, found
    return f"{found.kind}:{found.location}", found


def _check_word(section: Section, value: object) -> None:
    if isinstance(value, str) and value != IMAGE_HOST:
        section.problem(
            "image",
            f"{value!r} is unknown; write `image: host` for this machine's own tools, or"
            f" `image: {{registry: {{url: {value}}}}}`",
        )
    elif value != IMAGE_HOST:
        section.problem("image", f"must be the word host or a mapping, not {kind(value)}")


def _image_form(form: ImageKind, entry: Section, folder: str | None) -> ImageSource | None:
    if form is ImageKind.REGISTRY:
        reference = entry.text("url", required=True)
        login = _login(entry)
        if reference is None:
            return None
        if "://" in reference:
            rest = reference.partition("://")[2]
            entry.problem("url", f"{reference!r} starts with a scheme; write {rest!r}")
        elif _REFERENCE.fullmatch(reference) is None:
            entry.problem("url", f"{reference!r} is no reference of an image, such as golang:1.26")
        return ImageSource(kind=form, location=reference, credentials=login)
    if form is ImageKind.BUILD:
        context = entry.text("context", required=True)
        file = entry.text("containerfile")
        if context is None:
            return None
        place = absolute_source(entry, "context", context, folder)
        if file is not None:
            file = absolute_source(entry, "containerfile", file, place)
        return ImageSource(kind=form, location=place, containerfile=file)
    path = entry.text("path", required=True)
    if path is None:
        return None
    return ImageSource(kind=form, location=absolute_source(entry, "path", path, folder))


def read_repositories(
    section: Section, folder: str | None
) -> tuple[RepositorySource | None, tuple[RepositorySource, ...]]:
    """Read `repository` and `additionalRepositories`."""
    first = section.section("repository")
    main = None if first is None else _repository(first, folder)
    if first is not None:
        if first.has("target"):
            first.asked.add("target")
            first.problem("target", f"is for additional repositories; this one is {REPOSITORY}")
        first.finish()
    others: list[RepositorySource] = []
    taken = [REPOSITORY]
    for entry in section.sections("additionalRepositories"):
        target = _target(entry, taken)
        found = _repository(entry, folder, target=target or REPOSITORY)
        entry.finish()
        if target is not None:
            taken.append(target)
            if found is not None:
                others.append(found)
    return main, tuple(others)


def _target(entry: Section, taken: Sequence[str]) -> str | None:
    written = entry.text("target", required=True)
    if written is None:
        return None
    target = posixpath.normpath(written)
    if not written.startswith(f"{WORKSPACE_ROOT}/") or ".." in written.split("/"):
        entry.problem(
            "target", f"{written!r} must be an absolute path below {WORKSPACE_ROOT} without `..`"
        )
        return None
    for other in taken:
        if target == other or target.startswith(f"{other}/") or other.startswith(f"{target}/"):
            entry.problem("target", f"{target} and {other}, another repository, lie in one another")
            return None
    return target


def _repository(
    section: Section, folder: str | None, *, target: str = REPOSITORY
) -> RepositorySource | None:
    path, url = section.text("path"), section.text("url")
    uncommitted = section.flag("include_uncommitted", default=False)
    branch, checkout = _revision(section, "branch"), _revision(section, "checkout")
    depth = section.integer("depth", least=1, most=MOST_DEPTH)
    submodules = section.flag("submodules", default=False)
    login = _login(section)
    if section.has("path") and section.has("url"):
        section.problem("url", "path and url exclude each other; give one of them")
        return None
    if not section.has("path") and not section.has("url"):
        section.problem(None, "needs a path on this machine or a url")
        return None
    if url is not None:
        if section.has("include_uncommitted"):
            section.problem("include_uncommitted", "applies to a path only, not to a url")
        _check_url(section, url, has_login=login is not None)
        return RepositorySource(
            url=url,
            credentials=login,
            branch=branch,
            checkout=checkout,
            depth=depth,
            submodules=submodules,
            target=target,
        )
    if path is None:
        return None
    _check_path(section, uncommitted=uncommitted)
    return RepositorySource(
        path=absolute_source(section, "path", path, folder),
        include_uncommitted=uncommitted,
        branch=branch,
        checkout=checkout,
        depth=depth,
        submodules=submodules,
        target=target,
    )


def _check_path(section: Section, *, uncommitted: bool) -> None:
    if section.has("authentication"):
        section.problem("authentication", "applies to a url only; a path needs no login")
    if section.has("submodules"):
        section.problem(
            "submodules",
            "applies to a url only; of a path, include_uncommitted takes them as they lie",
        )
    for key in ("branch", "checkout", "depth") if uncommitted else ():
        if section.has(key):
            section.problem(
                key, "excludes include_uncommitted, which takes the files as they lie; remove one"
            )


def _check_url(section: Section, url: str, *, has_login: bool) -> None:
    if not url.startswith(URL_SCHEMES):
        schemes = ", ".join(URL_SCHEMES)
        section.problem("url", f"{url!r} is no repository address; start it with {schemes}")
    place = url.partition("://")[2].partition("/")[0]
    if "@" in place and not url.startswith("ssh://"):
        section.problem(
            "url", "must not carry a user name or password; write them below authentication"
        )
    if place.startswith("-") or not url.isprintable() or " " in url:
        section.problem("url", f"{url!r} holds an option, a space or a control character")
    if has_login and not url.startswith(("https://", "http://")):
        section.problem("authentication", "has a meaning with https:// only")


def _revision(section: Section, key: str) -> str | None:
    found = section.text(key)
    if found is not None and not is_revision(found):
        section.problem(key, f"{found[:60]!r} is no name of a branch, tag or commit")
        return None
    return found


def _login(section: Section) -> Credentials | None:
    below = section.section("authentication")
    if below is None:
        return None
    http = below.section("http", required=True)
    below.finish()
    if http is None:
        return None
    username = http.text("username", required=True)
    node = http.node("password", required=True)
    secret: str | None = None
    if node is not None and not isinstance(node.value, dict):
        # Its value is not told: it may be the password itself.
        http.problem("password", _SECRETS_FOR_VALUES)
    elif node is not None:
        password = http.section("password")
        if password is not None:
            secret = read_secret_name(password, "fromSecret")
            password.finish()
    http.finish()
    if username is not None and not (username.isprintable() and username.isascii()):
        http.problem("username", "must be printable ASCII text")
        return None
    if username is None or secret is None:
        return None
    return Credentials(username=username, secret=secret)


def read_secret_name(section: Section, key: str) -> str | None:
    """Read the name of a secret; what is none is not told, since a value may stand there."""
    found = section.text(key, required=True)
    if found is not None and not is_secret_name(found):
        section.problem(key, f"is no name of a secret: {SECRET_NAME_RULE}")
        return None
    return found


def absolute_source(section: Section, key: str, path: str, folder: str | None) -> str:
    """Join a path on this machine to the folder it was written in."""
    if path.startswith("~"):
        section.problem(key, f"{path!r} starts with ~, which is not expanded; write it out")
    if folder is None:
        return path
    return posixpath.normpath(posixpath.join(folder, path))
