"""Hosts that a workspace may reach: what an entry of an allowlist may say, and what it lets in.

Names are compared as names: lower case, letters, digits and hyphens, nothing that could also be
read as an address in any of the forms that programs know. What is not surely a name is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

DEFAULT_PORTS = (80, 443)
"""What an entry without a port lets in: plain http on the one, TLS on the other."""
MOST_ENTRIES = 256
_LONGEST_NAME = 253
_LABEL = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?", re.ASCII)
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*", re.ASCII)
_PORT = re.compile(r"[1-9][0-9]{0,4}", re.ASCII)
_HIGHEST_PORT = 65535


@dataclass(frozen=True, slots=True, kw_only=True)
class HostRule:
    """One entry of an allowlist."""

    host: str
    is_below: bool = False
    """Written `*.host`: every name below it, and not itself."""
    port: int | None = None
    """None: the default ports."""

    def lets_in(self, host: str, port: int) -> bool:
        """Say whether a host name in its plain form, and a port, are let in."""
        if port not in (DEFAULT_PORTS if self.port is None else (self.port,)):
            return False
        return host.endswith(f".{self.host}") if self.is_below else host == self.host


def plain_name(text: str) -> str:
    """Give a host's name in the one form that is compared: lower case.

    Raises:
        ValueError: It is no name; the message is a clause that follows the name.
    """
    if not text or not text.isascii():
        raise ValueError("is not written in ASCII" if text else "is empty")
    name = text.lower()
    if ":" in name or name.startswith("["):
        raise ValueError("is an address, and only names are let in")
    if len(name) > _LONGEST_NAME:
        raise ValueError(f"is longer than {_LONGEST_NAME} characters")
    if name.endswith("."):
        raise ValueError("ends in a dot")
    labels = name.split(".")
    # Every form of an IPv4 address that some resolver knows (127.1, 0177.0.0.1, 0x7f000001) ends
    # in a number, and no public name does.
    if _NUMBER.fullmatch(labels[-1]) is not None:
        raise ValueError("is an address, and only names are let in")
    if not all(_LABEL.fullmatch(label) for label in labels):
        raise ValueError("is no host name")
    if len(labels) == 1:
        raise ValueError("has no dot: only whole names are let in")
    return name


def read_rule(text: str) -> HostRule:
    """Read one entry: `host`, `*.host`, and either with `:port`.

    Raises:
        ValueError: It is none; the message is a clause that follows the entry.
    """
    if "/" in text or "@" in text:
        raise ValueError("must be a host name only, such as pypi.example.org or *.example.org:8443")
    name, colon, port = text.rpartition(":") if text.count(":") == 1 else (text, "", "")
    if colon and (_PORT.fullmatch(port) is None or int(port) > _HIGHEST_PORT):
        raise ValueError(f"has no port from 1 to {_HIGHEST_PORT} after its colon")
    is_below = name.startswith("*.")
    if "*" in (name[2:] if is_below else name):
        raise ValueError("may have a * only as its whole first part, as in *.example.org")
    host = plain_name(name[2:] if is_below else name)
    return HostRule(host=host, is_below=is_below, port=int(port) if colon else None)


def rule_problem(text: str) -> str | None:
    """Say what is wrong with an entry, or None."""
    try:
        read_rule(text)
    except ValueError as error:
        return f"{text[:80]!r} {error}"
    return None


def lets_in(rules: Iterable[HostRule], host: str, port: int) -> bool:
    """Say whether any entry lets a host in, its name in the plain form."""
    return any(rule.lets_in(host, port) for rule in rules)


def suggestion(host: str, port: int) -> str:
    """Give the entry that would let exactly this in."""
    return host if port in DEFAULT_PORTS else f"{host}:{port}"
