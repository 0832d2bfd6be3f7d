"""The web servers of the stand-ins: files under their names, and one git repository."""

from __future__ import annotations

import base64
import gzip
import http.server
import os
import shutil
import ssl
import subprocess
import threading
import urllib.parse
from pathlib import Path

from stand_ins.hosts import AGENT_SITE, CODE_SITE, DEBIAN_MIRROR, HOSTS, PACKAGE_SITE

INSTALLER = f"""\
#!/bin/bash
# Stands in for the installer of {AGENT_SITE}: the same program at the same place.
set -euo pipefail
mkdir -p "$HOME/.local/bin"
curl -fsSL https://{AGENT_SITE}/claude.tgz |
    tar -xz -C "$HOME/.local/bin" --strip-components=1 package/claude
chmod 755 "$HOME/.local/bin/claude"
"$HOME/.local/bin/claude" --version
"""
_MOST_BODY = 16 * 1024**2


class Folders:
    """Where each host's files lie, and who may read the repositories."""

    def __init__(self, root: Path, claude: Path, log: Path, user: str, token: str) -> None:
        """Keep them.

        Args:
            root: One folder below it per host, named as the host.
            claude: Archive of Claude Code.
            log: Gets a line for every request: `METHOD HOST PATH STATUS`.
            user: Who may clone.
            token: With which password.
        """
        self.root = root
        self.claude = claude
        words = base64.b64encode(f"{user}:{token}".encode()).decode()
        self.authorization = f"Basic {words}"
        self._log = log
        self._lock = threading.Lock()

    def note(self, line: str) -> None:
        """Remember a request."""
        with self._lock, self._log.open("a") as log:
            log.write(f"{line}\n")


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    folders: Folders
    host: str

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing of clients that go away."""


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def do_GET(self) -> None:
        """Answer as the host would."""
        path = urllib.parse.unquote(self.path.partition("?")[0])
        host = self.server.host
        if host == CODE_SITE:
            self._git(b"")
        elif host == AGENT_SITE and path == "/install.sh":
            self._answer(200, INSTALLER.encode(), "text/x-shellscript")
        elif host == AGENT_SITE and path == "/claude.tgz":
            self._file(self.server.folders.claude)
        elif host == PACKAGE_SITE and "/-/" not in path:
            self._file(self._below(path) / "document.json")
        else:
            self._file(self._below(path))

    do_HEAD = do_GET  # noqa: N815 - the name that the base class looks for

    def do_POST(self) -> None:
        """Take what git asks; refuse everything else, such as npm's audit."""
        length = int(self.headers.get("Content-Length") or 0)
        if self.headers.get("Transfer-Encoding") == "chunked":
            body = self._chunks()
        else:
            body = self.rfile.read(min(length, _MOST_BODY))
        if self.server.host == CODE_SITE:
            self._git(body)
        else:
            self._answer(404, b"not here\n")

    def _chunks(self) -> bytes:
        body = b""
        while size := int(self.rfile.readline().split(b";")[0], 16):
            body += self.rfile.read(size)
            self.rfile.readline()
            assert len(body) < _MOST_BODY
        self.rfile.readline()
        return body

    def _below(self, path: str) -> Path:
        root = self.server.folders.root / self.server.host
        found = (root / path.lstrip("/")).resolve()
        return found if found.is_relative_to(root.resolve()) else root / "none"

    def _file(self, path: Path) -> None:
        if not path.is_file():
            self._answer(404, b"not here\n")
            return
        with path.open("rb") as file:
            self._head(200, path.stat().st_size, "application/octet-stream")
            if self.command != "HEAD":
                shutil.copyfileobj(file, self.wfile, 1024**2)

    def _answer(self, status: int, body: bytes, kind: str = "text/plain", **more: str) -> None:
        self._head(status, len(body), kind, **more)
        if self.command != "HEAD":
            self.wfile.write(body)

    def _head(self, status: int, length: int, kind: str, **more: str) -> None:
        self.server.folders.note(f"{self.command} {self.server.host} {self.path} {status}")
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(length))
        for name, value in more.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()

    def _git(self, body: bytes) -> None:
        """Hand a request to git's own server, if who asks may read."""
        folders = self.server.folders
        if self.headers.get("Authorization") != folders.authorization:
            self._answer(
                401, b"who are you\n", WWW_Authenticate='Basic realm="a private repository"'
            )
            return
        path, _, query = self.path.partition("?")
        # The address that people write has no suffix; the folder has.
        name, slash, rest = path.partition("/info/")
        if not slash:
            name, slash, rest = path.rpartition("/")
        if not name.endswith(".git"):
            name += ".git"
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        done = subprocess.run(
            ["git", "http-backend"],
            input=body,
            env={
                "PATH": os.environ["PATH"],
                "GIT_PROJECT_ROOT": str(folders.root / CODE_SITE),
                "GIT_HTTP_EXPORT_ALL": "1",
                "GIT_PROTOCOL": self.headers.get("Git-Protocol") or "",
                "GIT_CONFIG_COUNT": "1",
                "GIT_CONFIG_KEY_0": "safe.directory",
                "GIT_CONFIG_VALUE_0": "*",
                "PATH_INFO": f"{name}{slash}{rest}",
                "QUERY_STRING": query,
                "REQUEST_METHOD": self.command,
                "CONTENT_TYPE": self.headers.get("Content-Type") or "",
                "CONTENT_LENGTH": str(len(body)),
                "REMOTE_USER": "x",
                "REMOTE_ADDR": self.client_address[0],
            },
            check=False,
            capture_output=True,
        )
        head, _, content = done.stdout.partition(b"\r\n\r\n")
        fields = dict(line.split(": ", 1) for line in head.decode().split("\r\n") if ": " in line)
        status = int((fields.pop("Status", "200")).split()[0])
        self._answer(
            status,
            content,
            fields.pop("Content-Type", "text/plain"),
            **{name: value for name, value in fields.items() if name != "Content-Length"},
        )

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - as the base class names it
        """Say nothing; `Folders.note` remembers."""


def serve(folders: Folders, certificate: Path, key: Path) -> tuple[_Server, ...]:
    """Listen at every host's address but the registry's, in threads."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    servers = []
    for one in HOSTS:
        if not (folders.root / one.name).is_dir():
            continue
        server = _Server((one.address, 443 if one.is_encrypted else 80), _Handler)
        if one.is_encrypted:
            server.socket = context.wrap_socket(
                server.socket, server_side=True, do_handshake_on_connect=False
            )
        server.folders, server.host = folders, one.name
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
    assert any(one.host == DEBIAN_MIRROR for one in servers)
    return tuple(servers)
