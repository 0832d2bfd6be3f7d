"""Records of connections: bounded, whole after a kill, and believed no more than their writer."""

from __future__ import annotations

import os
from pathlib import Path

from forkyard.gateway.egress.records import Records, read, remove
from forkyard.model.connection import MOST_HOSTS, MOST_LISTED, ConnectionOutcome
from forkyard.model.ids import new_workspace_id


def test_a_later_proxy_goes_on_where_one_was_killed(tmp_path: Path) -> None:
    """What was open is cut; what comes after is added."""
    workspace = new_workspace_id()
    first = Records(tmp_path, workspace)
    first.opened(first.begin("a.example.org", 443))
    second = Records(tmp_path, workspace)
    second.end(second.begin("b.example.org", 443), ConnectionOutcome.REFUSED, "why")

    live, over = read(tmp_path, workspace), read(tmp_path, workspace, is_over=True)

    assert [one.outcome for one in live.listed] == ["open", "refused"]
    assert [(one.outcome, one.reason) for one in over.listed] == [
        ("cut", "the proxy died"),
        ("refused", "why"),
    ]
    remove(tmp_path, workspace)
    assert list(tmp_path.iterdir()) == []


def test_what_is_let_in_is_still_told_when_refusals_flood(tmp_path: Path) -> None:
    """Made-up names fill their own half of the table only, and every connection is counted."""
    workspace = new_workspace_id()
    records = Records(tmp_path, workspace)
    for number in range(MOST_LISTED + 3 * MOST_HOSTS):
        records.end(records.begin(f"h{number}.example", 443), ConnectionOutcome.REFUSED, "no")
    entry = records.begin("good.example.org", 443)
    entry.sent_bytes = 7
    records.end(entry, ConnectionOutcome.CLOSED)

    found = read(tmp_path, workspace, is_over=True)

    assert len(found.listed) == MOST_LISTED
    assert len(found.counted) <= MOST_HOSTS + 2
    assert found.total == MOST_LISTED + 3 * MOST_HOSTS + 1
    assert [
        (one.host, one.count, one.sent_bytes)
        for one in found.counted
        if one.outcome is ConnectionOutcome.CLOSED
    ] == [("good.example.org", 1, 7)]


def test_nonsense_is_passed_over_when_a_file_is_not_what_it_should_be(tmp_path: Path) -> None:
    """Links, other kinds of files, numbers of a wrong size and control characters."""
    workspace = new_workspace_id()
    listed, counts = tmp_path / f"{workspace}.jsonl", tmp_path / f"{workspace}.counts"
    secret = tmp_path / "secret"
    secret.write_text("secret")
    listed.symlink_to(secret)
    os.mkfifo(counts)
    assert read(tmp_path, workspace).total == 0
    listed.unlink()
    counts.unlink()
    good = (
        '{"at":"t","host":"a\\u001b[2J","port":1,"outcome":"closed","reason":"","address":null,'
        '"sent_bytes":1,"received_bytes":1}'
    )
    listed.write_text(
        f"x\n[]\n[0]\n[-1,{good}]\n[99999999,{good}]\n[0,{good}]\n"
        f"[1,{good.replace('closed', 'odd')}]\n[2,{good.replace(':1,', ':-1,')}]\n" + "[" * 100_000
    )
    counts.write_text('[["a",1]]')

    found = read(tmp_path, workspace)

    assert [one.host for one in found.listed] == [r"'a\x1b[2J'"]
    assert found.counted == ()
