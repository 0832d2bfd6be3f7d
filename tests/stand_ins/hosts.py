"""Which hosts are stood in for, by what, and why: the list that the test prints and checks."""

from __future__ import annotations

from dataclasses import dataclass

NETWORK = "11.22.33"
"""Looks public, so that nothing treats it as a private network; it exists in one namespace."""

REGISTRY = "registry-1.docker.io"
AGENT_SITE = "claude.ai"
CODE_SITE = "github.com"
PACKAGE_SITE = "registry.npmjs.org"
DEBIAN_MIRROR = "deb.debian.org"
MODULE_PROXY = "proxy.golang.org"


@dataclass(frozen=True, slots=True, kw_only=True)
class StandIn:
    """One host that is stood in for."""

    name: str
    address: str
    is_encrypted: bool = True
    by: str
    why: str


HOSTS = (
    StandIn(
        name=REGISTRY,
        address=f"{NETWORK}.10",
        by="Debian's docker-registry, holding library/golang:1.26-bookworm, which is Debian 12"
        " with the Go that Debian has",
        why="image.registry.url, golang:1.26-bookworm",
    ),
    StandIn(
        name=CODE_SITE,
        address=f"{NETWORK}.11",
        by="git http-backend behind Basic authentication, holding acme-corp/payments-api",
        why="repository.url and its authentication",
    ),
    StandIn(
        name=DEBIAN_MIRROR,
        address=f"{NETWORK}.12",
        is_encrypted=False,
        by="a folder with two packages, nodejs and npm, made of the pinned Node.js wheel",
        why="apt-get update, apt-get install nodejs npm",
    ),
    StandIn(
        name=PACKAGE_SITE,
        address=f"{NETWORK}.13",
        by="npm's protocol over the pinned archives of @openai/codex",
        why="npm install -g @openai/codex",
    ),
    StandIn(
        name=AGENT_SITE,
        address=f"{NETWORK}.14",
        by="an install.sh of a few lines that unpacks the pinned archive of Claude Code",
        why="curl https://claude.ai/install.sh",
    ),
    StandIn(
        name=MODULE_PROXY,
        address=f"{NETWORK}.15",
        by="the files of a Go module proxy, holding acme-corp.example/clock",
        why="go mod download; the repository's go.sum is whole, so no checksum database is asked",
    ),
)


def addresses() -> dict[str, str]:
    """Give the address of each name."""
    return {one.name: one.address for one in HOSTS}


def listing() -> str:
    """Write the list for a person."""
    return "\n".join(f"{one.name}: {one.by} (for {one.why})" for one in HOSTS)
