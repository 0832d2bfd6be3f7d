"""What was spent: tokens and money, from the gateway's ledger."""

from __future__ import annotations

import click

from forkyard.cli.calls import json_option, talk
from forkyard.cli.output import as_json as write_json
from forkyard.cli.output import clean, progress, say, short, table, tokens, usd
from forkyard.wire.results import UsageInfo, UsageReport

_HEAD = ("REQUESTS", "INPUT", "CACHE READ", "CACHE WRITE", "OUTPUT", "USD")
_BY = ("run", "attempt", "agent", "model", "day")


@click.command(
    epilog="\b\nExamples:\n  forkyard usage\n  forkyard usage --by attempt last\n"
    "  forkyard usage --by model --json"
)
@click.argument("run_id", metavar="[RUN]", required=False)
@click.option("--by", type=click.Choice(_BY), default=None, help="Default: run, or attempt of RUN.")
@json_option
def usage(run_id: str | None, by: str | None, *, as_json: bool) -> None:
    """Show what agents spent on their models, of all runs or of one.

    Money is that of the price table in force when a request was made; `-` where a model has no
    known price. A request whose end nobody saw counts at its upper bound and is marked `~`.
    """
    grouping = by or ("run" if run_id is None else "attempt")
    report = talk(lambda client: client.usage(by=grouping, run=run_id))
    if as_json:
        write_json(report)
    else:
        _show(report)


def _show(report: UsageReport) -> None:
    if not report.lines:
        progress("Nothing was spent through the gateway yet.")
        return
    head = (report.by.upper(), "", *_HEAD)
    rows = [(_key(report.by, line.key), line.name, *_cells(line)) for line in report.lines]
    table(head, [*rows, ("total", "", *_cells(report.total))])
    if report.price_versions:
        say(f"Prices: {', '.join(clean(one) for one in report.price_versions)}")


def _key(by: str, key: str) -> str:
    return short(key) if by in {"run", "attempt"} else key


def _cells(spent: UsageInfo) -> tuple[str, ...]:
    is_bound = bool(spent.estimated_requests)
    return (
        str(spent.requests or 0),
        tokens(spent.input_tokens),
        tokens(spent.cache_read_tokens),
        tokens(spent.cache_write_tokens),
        ("~" if is_bound else "") + tokens(spent.output_tokens),
        ("~" if is_bound and spent.cost_usd else "") + usd(spent.cost_usd),
    )
