"""What an attempt or a workspace with an allowlist connected to, or tried to."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from forkyard.cli.calls import json_option, talk
from forkyard.cli.output import as_json as write_json
from forkyard.cli.output import clean, progress, size_of, table

if TYPE_CHECKING:
    from forkyard.wire.connections import ConnectionsInfo

_HEAD = ("HOST", "OUTCOME", "SENT", "RECEIVED", "WHY")


@click.command(
    epilog="\b\nExamples:\n  forkyard connections att_19c2\n  forkyard connections ws_77aa --json"
)
@click.argument("identity", metavar="ATTEMPT|WORKSPACE")
@json_option
def connections(identity: str, *, as_json: bool) -> None:
    """Show what was connected to by the allowlist's proxy, and what was refused, and why."""
    found = talk(lambda client: client.connections(identity))
    if as_json:
        write_json(found)
    else:
        _show(found)


def _show(found: ConnectionsInfo) -> None:
    if not found.total:
        progress(
            f"Nothing was connected to; its network is {found.network}"
            + (f", for {clean(', '.join(found.allow))}." if found.allow else ".")
        )
        return
    rows = [
        (
            clean(f"{one.host}:{one.port}"),
            one.outcome,
            size_of(one.sent_bytes),
            size_of(one.received_bytes),
            clean(one.reason),
        )
        for one in found.listed
    ]
    rows += [
        (
            clean(f"{one.host}:{one.port}"),
            one.outcome,
            size_of(one.sent_bytes),
            size_of(one.received_bytes),
            f"{one.count} more",
        )
        for one in found.counted
    ]
    table(_HEAD, rows)
