"""A git server behind HTTP and Basic authentication, as private repositories are."""

from __future__ import annotations

import base64
import os
import subprocess
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from station import git


class GitServer:
    """A folder of bare repositories; those named private need a login."""

    def __init__(self, folder: Path, logins: Mapping[str, tuple[str, str]] | None = None) -> None:
        """Listen on a port of this machine.

        Args:
            folder: Where the repositories lie.
            logins: Path prefix of a private repository -> user name and password.
        """
        self.folder = folder
        folder.mkdir(exist_ok=True)
        self.asked: list[tuple[str, str]] = []
        """Path and Authorization header of each request."""
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                server.answer(self)

            def do_POST(self) -> None:
                server.answer(self)

            def log_message(self, *_: object) -> None:
                return

        self.logins = dict(logins or {})
        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.http.serve_forever, daemon=True)
        self.thread.start()
        self.address = f"http://127.0.0.1:{self.http.server_address[1]}"

    def publish(self, source: Path, name: str) -> str:
        """Serve a repository; give its address."""
        git(source, "clone", "-q", "--bare", str(source), str(self.folder / name))
        return f"{self.address}/{name}"

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        """Ask for a login where one is needed, then let git answer."""
        path, _, query = request.path.partition("?")
        given = request.headers.get("Authorization", "")
        self.asked.append((path, given))
        for prefix, (user, password) in self.logins.items():
            expected = base64.b64encode(f"{user}:{password}".encode()).decode()
            if path.startswith(f"/{prefix}") and given != f"Basic {expected}":
                request.send_response(401)
                request.send_header("WWW-Authenticate", 'Basic realm="private"')
                request.send_header("Content-Length", "0")
                request.end_headers()
                return
        body = request.rfile.read(int(request.headers.get("Content-Length", "0")))
        done = subprocess.run(
            ["git", "http-backend"],
            input=body,
            capture_output=True,
            check=True,
            env={
                "PATH": os.defpath,
                "GIT_PROJECT_ROOT": str(self.folder),
                "GIT_HTTP_EXPORT_ALL": "1",
                "PATH_INFO": path,
                "QUERY_STRING": query,
                "REQUEST_METHOD": request.command,
                "CONTENT_TYPE": request.headers.get("Content-Type", ""),
                "HTTP_CONTENT_ENCODING": request.headers.get("Content-Encoding", ""),
                "GIT_PROTOCOL": request.headers.get("Git-Protocol", ""),
                "GIT_CONFIG_COUNT": "1",
                "GIT_CONFIG_KEY_0": "safe.directory",
                "GIT_CONFIG_VALUE_0": "*",
            },
        )
        head, _, content = done.stdout.partition(b"\r\n\r\n")
        lines = [line.partition(":") for line in head.decode().split("\r\n")]
        headers = {key: value.strip() for key, _, value in lines}
        request.send_response(int(headers.pop("Status", "200").split()[0]))
        for key, value in headers.items():
            request.send_header(key, value)
        request.send_header("Content-Length", str(len(content)))
        request.end_headers()
        request.wfile.write(content)

    def close(self) -> None:
        """Let go of the port."""
        self.http.shutdown()
        self.http.server_close()
