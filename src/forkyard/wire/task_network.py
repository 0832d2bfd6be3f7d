"""What a task file says of its attempts' network: `network: {policy, allow}`."""

from __future__ import annotations

from forkyard.model.hosts import MOST_ENTRIES, rule_problem
from forkyard.model.workspace import NetworkPolicy
from forkyard.wire.fields import Section

_NOT_HERE = {
    NetworkPolicy.OPEN.value: " for attempts, which could send anything anywhere; use allowlist",
    NetworkPolicy.NONE.value: "; an agent without a model has no network anyway: remove the key",
}


def read_network(section: Section) -> tuple[str, ...] | None:
    """Read the allowlist of a task's attempts.

    Returns:
        Its entries; empty: none, whatever the template says; None: as the template says.
    """
    below = section.section("network")
    if below is None:
        return None
    words = (NetworkPolicy.GATEWAY, NetworkPolicy.ALLOWLIST)
    policy = below.choice("policy", words, _NOT_HERE)
    allow = below.texts("allow", rule_problem)
    below.finish()
    if policy == NetworkPolicy.GATEWAY:
        if below.has("allow"):
            below.problem("allow", "has a meaning with policy: allowlist only")
        return ()
    if policy is None and below.has("policy"):
        return ()
    if not below.has("allow"):
        below.problem("allow", "is missing; an allowlist needs the names of the hosts")
    elif len(allow) > MOST_ENTRIES:
        below.problem("allow", f"has more than {MOST_ENTRIES} hosts")
    return tuple(dict.fromkeys(host.lower() for host in allow))
