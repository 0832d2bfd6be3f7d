"""The stand-ins, running: an internet of a test's own in which their names answer."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from own_internet import OwnInternet, own_internet
from stand_ins.hosts import HOSTS, REGISTRY
from stand_ins.image import registry_settings
from stand_ins.prepare import Prepared, prepare

BUNDLE = "/etc/ssl/certs/ca-certificates.crt"
"""Where Debian keeps what a machine trusts."""
USER = "x-access-token"
_TESTS = Path(__file__).parents[1]
_PATIENCE_SECONDS = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StandInternet:
    """An internet with the stand-ins and nobody else."""

    net: OwnInternet
    prepared: Prepared
    log: Path

    def requests(self) -> list[str]:
        """List what the web servers were asked so far: `METHOD HOST PATH STATUS`."""
        return self.log.read_text().splitlines()

    def run(self, *words: str, timeout: float = 120.0) -> str:
        """Run a command on the machine that reaches this internet; give what it printed."""
        done = subprocess.run(
            [*self.net.here(), *words],
            check=False,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout,
        )
        assert done.returncode == 0, f"{' '.join(words)}: {done.returncode}: {done.stdout}"
        return done.stdout


@contextmanager
def stand_internet(folder: Path, token: str) -> Iterator[StandInternet]:
    """Run all stand-ins while the block runs.

    The machine inside has the test authority among those that it trusts, as an administrator
    would put it there; nothing else tells it that these hosts are not the real ones.

    Args:
        folder: For settings and logs.
        token: Password that the repository is read with.
    """
    prepared = prepare()
    with own_internet({one.name: one.address for one in HOSTS}) as net:
        made = StandInternet(net=net, prepared=prepared, log=folder / "requests.log")
        made.log.touch()
        bundle = folder / "trusted.crt"
        trusted = Path(BUNDLE).read_bytes() if Path(BUNDLE).exists() else b""
        bundle.write_bytes(trusted + b"\n" + prepared.authority.read_bytes())
        made.run("mount", "--bind", str(bundle), BUNDLE)
        with _registry(made, folder), _web(made, folder, token):
            yield made


@contextmanager
def _web(made: StandInternet, folder: Path, token: str) -> Iterator[None]:
    certificate, key = made.prepared.certificate
    settings = folder / "web.json"
    settings.touch(mode=0o600)
    settings.write_text(
        json.dumps(
            {
                "sites": str(made.prepared.sites),
                "claude": str(made.prepared.claude),
                "log": str(made.log),
                "user": USER,
                "token": token,
                "certificate": str(certificate),
                "key": str(key),
            }
        )
    )
    child = subprocess.Popen(
        [*made.net.out_there(), sys.executable, "-m", "stand_ins", str(settings)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=_TESTS,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(_TESTS), "PYTHONDONTWRITEBYTECODE": "1"},
    )
    assert child.stdin is not None
    assert child.stdout is not None
    try:
        assert child.stdout.readline() == b"listening\n", "the stand-ins did not start"
        yield
    finally:
        child.stdin.close()
        _end(child)
        child.stdout.close()


@contextmanager
def _registry(made: StandInternet, folder: Path) -> Iterator[None]:
    address = next(one.address for one in HOSTS if one.name == REGISTRY)
    settings = folder / "registry.yml"
    settings.write_text(
        registry_settings(made.prepared.registry, f"{address}:443", made.prepared.certificate)
    )
    with (folder / "registry.log").open("wb") as log:
        child = subprocess.Popen(
            [*made.net.out_there(), "docker-registry", "serve", str(settings)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    try:
        made.run(
            *("curl", "--silent", "--show-error", "--fail", "--output", "/dev/null"),
            *("--retry", "50", "--retry-delay", "0", "--retry-connrefused"),
            f"https://{REGISTRY}/v2/",
        )
        yield
    finally:
        child.terminate()
        _end(child)


def _end(child: subprocess.Popen[bytes]) -> None:
    try:
        child.wait(_PATIENCE_SECONDS)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
