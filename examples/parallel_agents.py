"""Best of N by hand: one agent per fork of a snapshot, side by side, each judged by the test suite.

A developer prepared a workspace once (the repository at the right commit, its dependencies, a
failing test that reproduces the bug) and took the snapshot. Every agent starts from an identical
copy of it:

    python examples/parallel_agents.py issue-1842 --prompt "Fix the failing test, not the test." \
        --agent one='my-agent "$PROMPT"' --agent two='other-agent "$PROMPT"' --tests "make test"

This program runs the tests in the agent's own workspace, so a candidate could have changed them.
`forkyard run` does not: it judges in a clean fork where no agent can reach. Use this program as a
start for what `forkyard run` does not do.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import forkyard

REPOSITORY = "/workspace/repo"
WHOLE_SECONDS = 90 * 60.0
AGENT_SECONDS = 45 * 60.0
TESTS_SECONDS = 20 * 60.0


@dataclass(frozen=True, kw_only=True)
class Agent:
    """One agent: a name, and the shell command that reads the prompt from $PROMPT."""

    name: str
    command: str


@dataclass(frozen=True, kw_only=True)
class Job:
    """What all agents have in common."""

    snapshot: str
    prompt: str
    tests: str
    network: str
    patches: Path
    """Where the patches go."""


async def attempt(client: forkyard.Client, job: Job, agent: Agent) -> str:
    """Run one agent in a fork of its own and say in one line how it went."""
    try:
        # The fork is deleted at the end of the block, whatever happens in it.
        async with client.workspaces.run(
            snapshot=job.snapshot,
            ephemeral=True,
            display_name=f"{job.snapshot}: {agent.name}",
            network=job.network,
        ) as workspace:
            ran = await workspace.exec(
                agent.command,
                working_directory=REPOSITORY,
                variables={"PROMPT": job.prompt},
                timeout_seconds=AGENT_SECONDS,
            )
            tested = await workspace.exec(
                job.tests, working_directory=REPOSITORY, timeout_seconds=TESTS_SECONDS
            )
            # Collected from outside once nothing runs in it: no git of the agent's is run.
            patch = await workspace.save_patch(job.patches / f"{agent.name}.patch")
    except forkyard.ForkyardError as error:
        return f"{agent.name:14} no result: {error.message}"
    ended = f"exit {ran.exit_code}" if ran.stop_reason == "exited" else ran.stop_reason
    return (
        f"{agent.name:14} agent {ended} in {ran.elapsed_seconds:.0f}s,"
        f" tests passed: {'yes' if tested.succeeded else 'no'}, patch: {len(patch.content)} bytes"
    )


async def run(job: Job, agents: Sequence[Agent]) -> list[str]:
    """Run all agents at the same time and give one line for each, in their order."""
    async with asyncio.timeout(WHOLE_SECONDS), forkyard.connect() as client:
        await client.snapshots.wait_until_ready(job.snapshot)
        async with asyncio.TaskGroup() as group:
            attempts = [group.create_task(attempt(client, job, agent)) for agent in agents]
        return [one.result() for one in attempts]


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the command line, run, print the comparison."""
    parser = argparse.ArgumentParser(description="Run several agents in forks of one snapshot.")
    parser.add_argument("snapshot", help="name or id of a snapshot")
    parser.add_argument("--prompt", required=True, help="what the agents are asked")
    parser.add_argument(
        "--agent", action="append", required=True, metavar="NAME=COMMAND", help="one per agent"
    )
    parser.add_argument("--tests", required=True, help="a command that exits 0 when all is well")
    parser.add_argument(
        "--network",
        choices=["none", "gateway"],
        default="none",
        help="gateway: agents reach their models, without a key",
    )
    parser.add_argument("--patches", type=Path, default=Path(), help="folder for the patches")
    given = parser.parse_args(arguments)
    agents = []
    for entry in given.agent:
        name, equals, command = entry.partition("=")
        if not name or not equals or "/" in name:
            parser.error(f"--agent {entry!r} is not NAME=COMMAND")
        agents.append(Agent(name=name, command=command))
    job = Job(
        snapshot=given.snapshot,
        prompt=given.prompt,
        tests=given.tests,
        network=given.network,
        patches=given.patches,
    )
    try:
        lines = asyncio.run(run(job, agents))
    except forkyard.ForkyardError as error:
        print(f"{error.message}\n{error.hint or ''}".rstrip(), file=sys.stderr)
        return error.exit_code
    for line in lines:
        print(line)
    return 0


if __name__ == "__main__":
    sys.exit(main())
