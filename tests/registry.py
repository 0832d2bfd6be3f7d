"""A registry of images on this machine's loopback, for tests that pull."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

USER = "reader"
PASSWORD = "kept-from-everybody-41"  # noqa: S105 - of a registry that lives for one test
_HASH = "$2y$04$XP2w5O8HO3JNJHMwCcswduh/EUZ1zxsQuFfuDUgVw24lBRn1IHT9y"
_START_SECONDS = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Registry:
    """One that runs."""

    address: str
    """Host and port."""
    folder: Path
    """Its storage and its log."""
    is_private: bool = False

    def push(self, layout: Path, name: str) -> str:
        """Put an image of a layout folder there; give its reference."""
        reference = f"{self.address}/{name}"
        options = ["-q", "--dest-tls-verify=false", "--preserve-digests"]
        if self.is_private:
            options.append(f"--dest-creds={USER}:{PASSWORD}")
        subprocess.run(
            ["skopeo", "copy", *options, f"oci:{layout}", f"docker://{reference}"],
            check=True,
            capture_output=True,
            stdin=subprocess.DEVNULL,
        )
        return reference

    def requests(self) -> list[str]:
        """List what was asked for so far: method and path."""
        lines = (self.folder / "log").read_text(errors="replace").splitlines()
        return [line.split('"')[1] for line in lines if 'HTTP/1.1"' in line]

    def blobs(self) -> list[str]:
        """List the digests of the blobs that were fetched so far."""
        return [
            line.split("/blobs/")[1].split()[0]
            for line in self.requests()
            if line.startswith("GET") and "/blobs/sha256:" in line
        ]


@contextmanager
def registry(
    folder: Path, *, is_private: bool = False, certificate: tuple[Path, Path] | None = None
) -> Iterator[Registry]:
    """Run a registry until the end of the block.

    Args:
        folder: Empty, or one that an earlier registry left.
        is_private: Whether it asks for USER and PASSWORD.
        certificate: Files of its certificate and key; by default it speaks plain HTTP.
    """
    program = shutil.which("docker-registry")
    assert program is not None, "docker-registry is not installed"
    folder.mkdir(parents=True, exist_ok=True)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    lines = ["version: 0.1", "log: {level: warn}", "storage:"]
    lines += [f"  filesystem: {{rootdirectory: {folder / 'data'}}}", "  delete: {enabled: true}"]
    lines += ["http:", f"  addr: 127.0.0.1:{port}", "  secret: none"]
    if certificate is not None:
        lines += [f"  tls: {{certificate: {certificate[0]}, key: {certificate[1]}}}"]
    if is_private:
        (folder / "users").write_text(f"{USER}:{_HASH}\n")
        lines += ["auth:", f"  htpasswd: {{realm: test, path: {folder / 'users'}}}"]
    (folder / "config.yml").write_text("\n".join(lines) + "\n")
    with (folder / "log").open("ab") as log:
        server = subprocess.Popen(
            [program, "serve", str(folder / "config.yml")],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    try:
        _wait(port, server, folder)
        yield Registry(address=f"127.0.0.1:{port}", folder=folder, is_private=is_private)
    finally:
        server.terminate()
        server.wait(30)


def _wait(port: int, server: subprocess.Popen[bytes], folder: Path) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while True:
        assert server.poll() is None, (folder / "log").read_text(errors="replace")
        assert time.monotonic() < deadline, "the registry does not answer"
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.02)
