"""Reading one request: which API, which model, which scenario and turn, with which fault."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass

from aiohttp import web

from scripted_model.anthropic import Anthropic
from scripted_model.gemini import Gemini
from scripted_model.openai_chat import Chat
from scripted_model.openai_responses import Responses
from scripted_model.reply import SUBMIT, Reply, Speaker, make_reply, turn_index
from scripted_model.scenario import Book, Fault, Turn, usage_of
from scripted_model.shapes import Object, an_object, text
from scripted_model.tools import Tool

_PREFIX = re.compile(r"/s/([\w.-]+)(/.*)")
_GEMINI = re.compile(r"/v1(?:beta)?/models/([^/:]+):(\w+)")
_FOLDER = re.compile(
    r"(?:<cwd>|[Ww]orking directory(?: is)?: *|working in the directory: *)([^\s<\"'`\\]+)"
)
_SPEAKERS: dict[str, Speaker] = {
    "/v1/messages": Anthropic(),
    "/v1/responses": Responses(),
    "/v1/chat/completions": Chat(),
}
_GEMINI_SPEAKER = Gemini()


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrived:
    """One request off the wire."""

    method: str
    target: str
    path: str
    """Without a scenario's prefix."""
    body: Object
    raw: str
    key: str
    scenario: str
    header_names: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A request to a model, and the turn that answers it."""

    speaker: Speaker
    model: str
    is_streaming: bool
    index: int | None
    turn: Turn
    fault: Fault
    tools: tuple[Tool, ...]
    most_output: int | None


async def arrive(request: web.Request, book: Book) -> Arrived:
    """Read a request whole."""
    raw = (await request.read()).decode("utf-8", "replace")
    try:
        body = an_object(json.loads(raw)) if raw else {}
    except ValueError:
        body = {}
    prefixed = _PREFIX.fullmatch(request.path)
    bearer = request.headers.get("authorization", "")
    key = (
        request.headers.get("x-api-key")
        or request.headers.get("x-goog-api-key")
        or bearer.removeprefix("Bearer ")
        or request.query.get("key", "")
    )
    return Arrived(
        method=request.method,
        target=request.raw_path,
        path=prefixed.group(2) if prefixed else request.path,
        body=body,
        raw=raw,
        key=key,
        scenario=book.choose(
            prefix=prefixed.group(1) if prefixed else None,
            header=request.headers.get("x-scenario"),
            body=raw,
            key=key,
        ),
        header_names=tuple(sorted({name.lower() for name in request.headers})),
    )


def is_count(path: str) -> bool:
    """Say whether a path only counts tokens."""
    return path == "/v1/messages/count_tokens" or path.endswith(":countTokens")


def ask(arrived: Arrived, book: Book) -> Asked | None:
    """Find the turn that answers; None: there is no such path."""
    body, model = arrived.body, text(arrived.body.get("model"))
    speaker = _SPEAKERS.get(arrived.path)
    is_streaming = body.get("stream") is True
    found = _GEMINI.fullmatch(arrived.path)
    if found is not None and found.group(2) in {"generateContent", "streamGenerateContent"}:
        speaker, model = _GEMINI_SPEAKER, found.group(1)
        is_streaming = found.group(2) == "streamGenerateContent"
    if speaker is None or arrived.method != "POST":
        return None
    tools = tuple(speaker.tools(body))
    is_side = not tools and not book.plays_without_tools(arrived.scenario)
    index = None if is_side else turn_index(speaker.history(body))
    turn = book.turn(arrived.scenario, index)
    fault = book.fault(
        turn,
        api=speaker.name,
        place=(arrived.scenario, str(index), speaker.name),
        who=_conversation(arrived),
    )
    return Asked(
        speaker=speaker,
        model=model,
        is_streaming=is_streaming,
        index=index,
        turn=turn,
        fault=fault,
        tools=tools,
        most_output=speaker.most_output(body),
    )


def reply_to(arrived: Arrived, asked: Asked) -> Reply:
    """Play the turn.

    Raises:
        UnplayableError: The agent declared no tool for one of its actions.
    """
    folder = _FOLDER.search(arrived.raw)
    return make_reply(
        asked.turn,
        index=asked.index or 0,
        usage=asked.speaker.told(usage_of(asked.turn, body_bytes=len(arrived.raw.encode()))),
        most_output=asked.most_output,
        tools=asked.tools,
        working_directory=folder.group(1) if folder else None,
        model=asked.model,
        wants_submit=SUBMIT in arrived.raw,
    )


def _conversation(arrived: Arrived) -> str:
    """Name a conversation by its key and its first two messages."""
    for field in ("messages", "input", "contents"):
        said = arrived.body.get(field)
        if said:
            first = said[:2] if isinstance(said, list) else said
            whole = arrived.key + json.dumps(first)
            return hashlib.sha256(whole.encode()).hexdigest()
    return arrived.key
