"""What SDK calls give back where the wire's own form would be awkward."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecOutcome:
    """How a command ended, with everything it printed (to the workspace's output limit)."""

    id: str
    stop_reason: str
    """`exited`, `timed-out`, `killed`, `memory-limit`, `could-not-start` or `interrupted`."""
    exit_code: int | None
    elapsed_seconds: float
    stdout: bytes
    stderr: bytes
    truncated: bool
    detail: str | None = None

    @property
    def succeeded(self) -> bool:
        """Whether it ran to its end and exited 0."""
        return self.stop_reason == "exited" and self.exit_code == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Patch:
    """A workspace's change against its snapshot, as a patch that `git apply` takes."""

    content: bytes
    sha256: str
    status: str
    """`complete`, `incomplete` or `invalid`; `problems` says why."""
    base_tree: str
    result_tree: str
    files: tuple[str, ...]
    problems: tuple[str, ...] = ()
