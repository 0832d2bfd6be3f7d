"""Every error Forkyard raises on purpose, and how it reads.

    ForkyardError                    exit  http
    ├─ UserError                        2   400   asking differently would help
    │  ├─ ConfigError                   2   400   a file or flag: every problem at once
    │  ├─ NotFoundError                 3   404
    │  ├─ ConflictError                 4   409   exists already, or is in the wrong state
    │  └─ AccessDeniedError             5   403
    ├─ WorkspaceError                  10   500   storage, sandbox or template trouble of ours
    │  └─ SandboxUnavailableError      10   503   no isolation to be had: nothing was started
    ├─ AgentError                      11   500   an agent could not be started or understood
    ├─ GatewayError                    12   502   the gateway, or a provider of models behind it
    ├─ EvaluationError                 14   500   a check could not be run (failing is a result)
    ├─ StoreError                      15   503   the journal or the state directory
    └─ InternalError                   70   500   our bug

A message is one clause, ``cannot <verb> <thing>: <reason with values>``, without a final period.
A hint is one imperative sentence: what to do next. Non-zero exits of a user's command, failed
checks and losing attempts are results, never errors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One thing wrong in a configuration, with the place to look."""

    message: str
    file: str | None = None
    line: int | None = None
    """1-based; None where no file stands behind the value."""
    key: str | None = None
    """Dotted path of the key, such as ``checks.0.timeout``."""

    def __str__(self) -> str:
        """Give ``file:line: key: message`` with the parts that are known."""
        place = self.file or ""
        if place and self.line is not None:
            place = f"{place}:{self.line}"
        return ": ".join(part for part in (place, self.key, self.message) if part)


class ForkyardError(Exception):
    """Root of everything raised on purpose; catch it to catch them all."""

    code: ClassVar[str] = "error"
    exit_code: ClassVar[int] = 70
    http_status: ClassVar[int] = 500
    by_code: ClassVar[dict[str, type[ForkyardError]]] = {}

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        """Keep one clause of what happened and one sentence of what to do next."""
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __init_subclass__(cls) -> None:
        """Enter the class in the closed table that the client looks codes up in."""
        super().__init_subclass__()
        ForkyardError.by_code[cls.code] = cls

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle with the keyword-only hint."""
        return (_rebuild, (type(self), self.message, self.hint))


def _rebuild(cls: type[ForkyardError], message: str, hint: str | None) -> ForkyardError:
    return cls(message, hint=hint)


class UserError(ForkyardError):
    """The request cannot be honoured as it stands; the user can change it."""

    code = "bad-request"
    exit_code = 2
    http_status = 400


class ConfigError(UserError):
    """A file, flag or request body has problems; all of them are listed at once.

    Not for a well-formed request that names something absent: that is NotFoundError.
    """

    code = "bad-configuration"

    def __init__(
        self, message: str, *, hint: str | None = None, problems: tuple[Problem, ...] = ()
    ) -> None:
        """Keep the problems beside the sentence that announces them."""
        super().__init__(message, hint=hint)
        self.problems = problems

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle with the problems."""
        return (_rebuild_config, (self.message, self.hint, self.problems))


def _rebuild_config(message: str, hint: str | None, problems: tuple[Problem, ...]) -> ForkyardError:
    return ConfigError(message, hint=hint, problems=problems)


class NotFoundError(UserError):
    """Nothing of that name or id exists (any more)."""

    code = "not-found"
    exit_code = 3
    http_status = 404


class ConflictError(UserError):
    """The thing exists already, or its state forbids the request; the message names both states."""

    code = "conflict"
    exit_code = 4
    http_status = 409


class AccessDeniedError(UserError):
    """The caller may not do this."""

    code = "denied"
    exit_code = 5
    http_status = 403


class WorkspaceError(ForkyardError):
    """A workspace, snapshot or template build failed for a reason that is not the agent's."""

    code = "workspace"
    exit_code = 10


class SandboxUnavailableError(WorkspaceError):
    """This machine cannot isolate as promised; nothing was started and nothing weaker was tried."""

    code = "sandbox-unavailable"
    http_status = 503


class AgentError(ForkyardError):
    """An agent's command line could not be started or its output not understood."""

    code = "agent"
    exit_code = 11


class GatewayError(ForkyardError):
    """The gateway could not be started or asked, or a provider behind it refused us."""

    code = "gateway"
    exit_code = 12
    http_status = 502


class EvaluationError(ForkyardError):
    """A check could not be run at all; a check that ran and failed is a result."""

    code = "evaluation"
    exit_code = 14


class StoreError(ForkyardError):
    """The journal or the state directory cannot be used (locked, full, damaged, too new)."""

    code = "store"
    exit_code = 15
    http_status = 503


class InternalError(ForkyardError):
    """A bug of ours; the traceback is in the server's log."""

    code = "internal"
