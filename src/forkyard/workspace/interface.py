"""The contract between those who want commands run and whatever isolates them.

A fleet says where sandboxes run. It owns no truth: the journal says what is wanted, the fleet
reports what is. Rules for every implementation and its fake:

- `start` and `exec` are idempotent by (workspace, epoch) and by exec id: asking again attaches
  to what is there and never starts a second one.
- A command that fails is a result; an exception means the command did not run because of us.
- Cancelling a call leaves what it waited for running; only `kill_exec` and `stop` end things.
- After `stop` returns, no process, mount, cgroup or socket of that sandbox is left, and the
  workspace's upper directory no longer changes.
- Whoever calls has journalled the names of everything that will exist before it does.
"""

from __future__ import annotations

import asyncio
import socket
from dataclasses import dataclass, field
from typing import Protocol

from forkyard.model.execution import ExecResult, ExecSpec
from forkyard.model.ids import ExecId, LayerId, WorkspaceId
from forkyard.model.workspace import Environment, Limits, NetworkPolicy, RecordedBase


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxSpec:
    """Everything a fleet needs to run one workspace."""

    workspace: WorkspaceId
    epoch: int
    layers: tuple[LayerId, ...]
    """Topmost first."""
    slot: int
    environment: Environment
    limits: Limits
    network: NetworkPolicy
    providers: tuple[str, ...] = ()
    """With network `gateway` or `allowlist`: the names under which the gateway listens inside."""
    allow: tuple[str, ...] = ()
    """With network `allowlist`: its entries, for the proxy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningSandbox:
    """One sandbox that a fleet has, as found on the machine."""

    workspace: WorkspaceId
    epoch: int
    execs: tuple[ExecId, ...] = ()
    """Execs still running in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Isolation:
    """What is in force on this machine, for `doctor` and for manifests."""

    runtime: str | None
    """Such as `crun 1.8.1`; None where no container could really be started."""
    storage_mode: str
    protections: dict[str, str] = field(default_factory=dict)
    """Name -> what is in force, such as `memory limit: cgroup v1`."""
    problems: tuple[str, ...] = ()
    """Why nothing can run here, each with what to do; empty where sandboxes work."""
    notes: tuple[str, ...] = ()
    digest: str = ""
    """sha256 of the sandbox configuration, protections included."""


@dataclass(frozen=True, slots=True)
class Line:
    """An open connection to an exec; what is said on it is in shim/attach.py."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter


class Fleet(Protocol):
    """Where sandboxes run; see the module for the rules."""

    async def isolation(self) -> Isolation:
        """Say what isolation is in force, by really starting a container once."""
        ...

    async def start(self, spec: SandboxSpec) -> None:
        """Run a workspace's sandbox; returns when commands can be run in it."""
        ...

    async def prepare(self, spec: SandboxSpec) -> None:
        """Make a sandbox ahead of time, all but its files; `start` of the same one finishes it.

        Where it cannot be used after all, `start` makes one as always; `stop` ends it.
        """
        ...

    async def exec(self, spec: ExecSpec, *, epoch: int) -> ExecResult:
        """Run one command and wait for its end, or attach to it if it was started before."""
        ...

    def hold(self, spec: ExecSpec, *, epoch: int) -> None:
        """Have a command made ready that `exec` of the same one will begin; never waits or fails.

        Nothing of it runs before that. It is forgotten where the server ends first.
        """
        ...

    def drop(self, spec: ExecSpec, *, epoch: int) -> None:
        """Forget a command that was held: `exec` of it will not come."""
        ...

    async def kill_exec(self, workspace: WorkspaceId, exec_id: ExecId, *, epoch: int) -> None:
        """End one exec and everything it left behind: TERM, grace, KILL. Idempotent."""
        ...

    async def freeze(self, workspace: WorkspaceId, *, epoch: int, seconds: float) -> None:
        """Hold everything in a sandbox still until `thaw`, and so long at most.

        Meanwhile nothing in it runs, time limits do not either, and what is asked of it waits. It
        goes on by itself when whoever asked is gone.

        Raises:
            WorkspaceError: It could not be; it runs on.
        """
        ...

    async def thaw(self, workspace: WorkspaceId, *, epoch: int) -> float | None:
        """Let a sandbox go on.

        Returns:
            For how long it was held still; None where it was not so all the time until now.
        """
        ...

    async def attach(self, workspace: WorkspaceId, exec_id: ExecId, *, epoch: int) -> Line | None:
        """Attach to an exec that runs: give it input, get its output; None where it does not."""
        ...

    async def connect(self, workspace: WorkspaceId, port: int, *, epoch: int) -> socket.socket:
        """Connect to a port of a sandbox's own loopback; WorkspaceError where nobody listens."""
        ...

    async def stop(self, workspace: WorkspaceId, *, epoch: int) -> None:
        """End a sandbox and all that is in it. Idempotent, also when it never ran."""
        ...

    async def running(self) -> tuple[RunningSandbox, ...]:
        """List the sandboxes that are alive on this machine, whoever started them."""
        ...

    def recorded_result(self, workspace: WorkspaceId, exec_id: ExecId) -> ExecResult | None:
        """Read an exec's durable exit record; None while it has none."""
        ...


class BaseRecorder(Protocol):
    """Says what a stopped tree's repository really holds; implemented above, in candidate."""

    async def record(
        self, layers: tuple[LayerId, ...], repository: str, known: RecordedBase | None = None
    ) -> RecordedBase:
        """Walk the merged tree of the layers (topmost first) and record the repository's base.

        Args:
            layers: No sandbox writes to them any more.
            repository: Absolute path inside; it is a real folder there.
            known: What the layers below the topmost hold, where that is known: the cost then
                follows what the topmost one changes.
        """
        ...
