"""Routes of runs, attempts and candidates."""

from __future__ import annotations

from pathlib import Path

from starlette.responses import FileResponse, StreamingResponse

from forkyard.coordinator.story import FILE_NAME as TRAJECTORY
from forkyard.errors import ConflictError, NotFoundError
from forkyard.model.budget import Budget
from forkyard.model.candidate import Candidate
from forkyard.model.run import TERMINAL_ATTEMPT_STATES, Attempt, Run, RunLimits
from forkyard.server.finding import find_workspace
from forkyard.server.lookup import find
from forkyard.server.output import stream_file
from forkyard.server.services import Services
from forkyard.server.spending import GROUPINGS, usage_report
from forkyard.server.table import Answer, Call, bad_query
from forkyard.server.views import candidate_view, run_summary, run_view
from forkyard.wire.quickform import quick_request
from forkyard.wire.results import (
    ApplicationInfo,
    ApplyRequest,
    CandidateInfo,
    QuickRequest,
    RunInfo,
    SubmitRequest,
    UsageReport,
)
from forkyard.wire.taskfile import RunRequest, parse_run

RUNS_HINT = "See `forkyard status`."
ATTEMPTS_HINT = (
    "Name an agent as `forkyard status last` shows it (RUN:AGENT for an older run), its candidate,"
    " or an attempt's id."
)
MOST_NAMED = 4


def find_run(services: Services, text: str) -> Run:
    """Find a run by id or the newest of a name; `last` is the newest of all."""
    state = services.journal.state
    runs = {str(key): one for key, one in state.runs.items()}
    named = next(reversed(state.runs.values()), None) if text == "last" else state.run_named(text)
    names = None if named is None else {text: str(named.id)}
    return find("run", text, runs, prefix="run", names=names, hint=RUNS_HINT)


def find_attempt(services: Services, text: str) -> Attempt:
    """Find an attempt by id, by its candidate, or as ``[RUN:]AGENT[#N]`` of a run (the newest)."""
    state = services.journal.state
    attempts = {str(key): one for key, one in state.attempts.items()}
    if text.startswith("cand_"):
        return attempts[find_candidate(services, text).attempt]
    run, colon, agent = text.rpartition(":")
    if colon or (text not in attempts and state.runs):
        name, _, number = agent.partition("#")
        named = [
            str(one.id)
            for one in state.attempts_of(find_run(services, run or "last").id)
            if one.agent == name and number in {"", str(one.number)}
        ]
        if len(named) > 1:
            raise ConflictError(
                f"cannot tell which attempt {text!r} means: it fits {len(named)} of them"
                f" ({', '.join(named[:MOST_NAMED])}{', ...' if len(named) > MOST_NAMED else ''})",
                hint="Give the number too, as AGENT#N, or one of these ids.",
            )
        if named:
            return attempts[named[0]]
    return find("attempt", text, attempts, prefix="att", hint=ATTEMPTS_HINT)


def find_candidate(services: Services, text: str) -> Candidate:
    """Find a candidate by id."""
    candidates = {str(key): one for key, one in services.journal.state.candidates.items()}
    return find("candidate", text, candidates, prefix="cand", hint="See `forkyard compare RUN`.")


async def submit_run(call: Call) -> RunInfo:
    """Submit a task file or the quick form."""
    body = call.asked(SubmitRequest)

    async def is_there() -> bool:
        return not await call.request.is_disconnected()

    if body.quick is not None:
        request = read_quick(body.quick)
    else:
        request = parse_run(body.text or "", body.file)
    run = await call.services.runs.submit(request, is_wanted=is_there)
    return _view(call, run)


def _view(call: Call, run: Run, *, is_brief: bool = False) -> RunInfo:
    live = call.services.runs.live(run.id)
    return run_view(run, call.services.journal.state, is_brief=is_brief, live=live)


def read_quick(quick: QuickRequest) -> RunRequest:
    """Turn the quick form into a request.

    Raises:
        ConfigError: With every problem of it.
    """
    limits = RunLimits()
    return quick_request(
        quick.prompt,
        agents=quick.agents,
        cwd=quick.cwd,
        attempts=quick.attempts,
        checks=quick.checks,
        include_uncommitted=quick.include_uncommitted,
        limits=RunLimits(
            parallel=quick.parallel or limits.parallel,
            attempt_timeout_seconds=quick.attempt_timeout_seconds or limits.attempt_timeout_seconds,
            deadline_seconds=quick.deadline_seconds,
            budget=Budget(tokens=quick.budget_tokens, micro_usd=quick.budget_micro_usd),
        ),
        repository_path=quick.repository,
        snapshot=quick.snapshot,
        template=quick.template,
        values=quick.vars,
        setup=quick.setup,
        allow=quick.allow,
        protected=quick.protected,
        scope=quick.scope,
        held_out=quick.held_out,
    )


async def list_runs(call: Call) -> Answer:
    """List runs, oldest first."""
    state = call.services.journal.state
    return [run_summary(one, state) for one in state.runs.values()]


async def show_run(call: Call) -> RunInfo:
    """Show a run with everything it has found out."""
    run = find_run(call.services, call.parameters["id"])
    return _view(call, run, is_brief=call.flag("brief"))


async def cancel_run(call: Call) -> RunInfo:
    """Ask a run to end."""
    run = find_run(call.services, call.parameters["id"])
    return _view(call, await call.services.runs.cancel(run.id))


async def retry_run(call: Call) -> RunInfo:
    """Start again what trouble of ours ended."""
    run = find_run(call.services, call.parameters["id"])
    return _view(call, await call.services.runs.retry(run.id))


async def regrade_run(call: Call) -> RunInfo:
    """Evaluate the candidates again."""
    run = find_run(call.services, call.parameters["id"])
    return _view(call, await call.services.runs.regrade(run.id))


async def attempt_log(call: Call) -> StreamingResponse:
    """Give what the agent printed, from an offset on, and what comes while it runs."""
    services = call.services
    attempt = find_attempt(services, call.parameters["id"])
    stream = call.query.get("stream", "stdout")
    if stream not in {"stdout", "stderr"}:
        raise bad_query("stream", f"must be stdout or stderr, not {stream!r}")

    def is_over() -> bool:
        now = services.journal.state.attempts.get(attempt.id)
        return now is None or now.state in TERMINAL_ATTEMPT_STATES or services.stopping.is_set()

    return StreamingResponse(
        stream_file(
            services.runs.log(attempt, stream),
            offset=call.number("offset", 0),
            follow=call.flag("follow"),
            is_over=is_over,
            is_cut=services.stopping.is_set,
            masker=services.masker,
        ),
        media_type="application/octet-stream",
    )


async def attempt_trajectory(call: Call) -> FileResponse:
    """Give an attempt's transcript in the one shape that all agents' have."""
    attempt = find_attempt(call.services, call.parameters["id"])
    path = call.services.layout.attempt(attempt.run, attempt.id) / TRAJECTORY
    if not path.is_file():
        raise NotFoundError(
            f"cannot show a trajectory of {attempt.id}: its agent is not over, or of a kind whose"
            " output nobody can read",
            hint=f"Show what it printed with `forkyard logs {attempt.id}`.",
        )
    return FileResponse(path, media_type="application/json")


async def usage(call: Call) -> UsageReport:
    """Tell what was spent, by run, attempt, agent, model or day."""
    by = call.query.get("by", "run")
    if by not in GROUPINGS:
        raise bad_query("by", f"must be one of {', '.join(GROUPINGS)}, not {by!r}")
    await call.services.runs.copy_usage()
    state = call.services.journal.state
    rows = tuple(state.usage.values())
    if "run" in call.query:
        run = find_run(call.services, call.query["run"])
        rows = tuple(row for row in rows if row.run == run.id)
    return usage_report(rows, by, state)


async def show_candidate(call: Call) -> CandidateInfo:
    """Show one candidate."""
    services = call.services
    return candidate_view(find_candidate(services, call.parameters["id"]), services.journal.state)


async def candidate_patch(call: Call) -> FileResponse:
    """Give its patch, byte for byte."""
    candidate = find_candidate(call.services, call.parameters["id"])
    return _file(call.services.candidates.patch(candidate.id), "text/x-patch")


async def candidate_manifest(call: Call) -> FileResponse:
    """Give its manifest."""
    candidate = find_candidate(call.services, call.parameters["id"])
    return _file(call.services.candidates.manifest(candidate.id), "application/json")


async def apply_candidate(call: Call) -> ApplicationInfo:
    """Put its bytes into a folder of the host or into a workspace."""
    body = call.asked(ApplyRequest)
    services = call.services
    candidate = find_candidate(services, call.parameters["id"])
    if body.target is not None:
        done = await services.candidates.apply_to_tree(candidate.id, Path(body.target))
    else:
        workspace = find_workspace(services, body.workspace or "")
        done = await services.candidates.apply_to_workspace(candidate.id, workspace.id)
    return ApplicationInfo.model_validate(done)


def _file(path: Path, media_type: str) -> FileResponse:
    if not path.is_file():
        raise NotFoundError(
            f"cannot read {path.name}: it is not there (any more)",
            hint="Collect the run again with `forkyard retry RUN`.",
        )
    return FileResponse(path, media_type=media_type)
