"""docker and podman, installed from Debian, on data folders of their own, ended by their ids."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

PACKAGES = {
    "/usr/bin/docker": "docker.io",
    "/usr/bin/podman": "podman",
    "/usr/bin/busybox": "busybox-static",
}
IMAGE = "forkyard-bench"
DAEMON_START_SECONDS = 60.0
_PRIVATE = """
if mountpoint -q /sys/fs/cgroup/unified; then umount /sys/fs/cgroup/unified; fi
exec "$@"
"""
"""crun, which podman starts, refuses a cgroup tree of both versions."""
_LIMITS = ("--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1000:1000")
"""Podman's own defaults are above what root without CAP_SYS_RESOURCE may ask for."""


def say(text: str) -> None:
    """Tell progress where results do not go."""
    print(f"bench: {text}", file=sys.stderr, flush=True)


def install() -> None:
    """Install what is missing, after saying so."""
    missing = [package for path, package in PACKAGES.items() if not Path(path).exists()]
    if not missing:
        return
    say(f"installing {' '.join(missing)} with apt-get, to measure against")
    variables = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    subprocess.run(["apt-get", "update", "-q"], check=False, stdout=sys.stderr)
    subprocess.run(
        ["apt-get", "install", "-y", "-q", "--no-install-recommends", *missing],
        check=True,
        env=variables,
        stdout=sys.stderr,
    )


def write_image(tar: Path, repository: Path) -> None:
    """Write a root file system of busybox and the repository, for both engines."""
    with tarfile.open(tar, "w") as archive:
        archive.add("/usr/bin/busybox", "bin/busybox")
        for name in ("sh", "ls", "true", "sleep", "cat"):
            link = tarfile.TarInfo(f"bin/{name}")
            link.type = tarfile.SYMTYPE
            link.linkname = "busybox"
            archive.addfile(link)
        for folder in ("proc", "sys", "dev", "etc", "tmp", "workspace"):
            entry = tarfile.TarInfo(folder)
            entry.type = tarfile.DIRTYPE
            entry.mode = 0o755
            archive.addfile(entry)
        archive.add(repository, "workspace/repo")


class Runner:
    """A process that times commands, in a mount namespace of its own."""

    def __init__(self) -> None:
        """Start it."""
        self._child = subprocess.Popen(
            [
                *("unshare", "--mount", "--propagation", "private", "sh", "-c", _PRIVATE, "sh"),
                *(sys.executable, "-m", "benchmarks.runner"),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def seconds(self, argv: Sequence[str]) -> float:
        """Run one command that must succeed; give how long it took."""
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        self._child.stdin.write(json.dumps(list(argv)) + "\n")
        self._child.stdin.flush()
        code, seconds, said = json.loads(self._child.stdout.readline())
        if code != 0:
            raise SystemExit(f"cannot measure: {' '.join(argv)} exited {code}: {said.strip()}")
        return float(seconds)

    def close(self) -> None:
        """End it."""
        assert self._child.stdin is not None
        self._child.stdin.close()
        self._child.wait()


class Engine:
    """One container engine's command line with its global options."""

    def __init__(
        self, name: str, command: Sequence[str], runner: Runner, options: Sequence[str] = ()
    ) -> None:
        """Keep how it is called; the options are for each container."""
        self.name = name
        self._options = ("--network", "none", "--rm", *options)
        self._command = tuple(command)
        self._runner = runner

    def seconds(self, *arguments: str) -> float:
        """Time one call."""
        return self._runner.seconds([*self._command, *arguments])

    def load(self, tar: Path) -> None:
        """Make the image."""
        self.seconds("import", str(tar), IMAGE)

    def run_first_command(self, *command: str) -> float:
        """Time a fresh container with its first command."""
        return self.seconds("run", *self._options, IMAGE, *command)

    @contextlib.contextmanager
    def container(self) -> Iterator[str]:
        """Keep a container running."""
        name = "forkyard-bench-exec"
        self.seconds("run", "-d", "--name", name, *self._options, IMAGE, "sleep", "86400")
        try:
            yield name
        finally:
            self.seconds("rm", "-f", name)


@contextlib.contextmanager
def docker(folder: Path, runner: Runner) -> Iterator[Engine]:
    """Run a docker daemon of our own on folders and a socket of our own."""
    state = folder / "docker"
    run = Path("/run") / f"forkyard-bench-{os.getpid()}"
    state.mkdir()
    run.mkdir(mode=0o700)
    socket = run / "docker.sock"
    log = state / "log"
    with log.open("wb") as output:
        daemon = subprocess.Popen(
            [
                *("/usr/sbin/dockerd", "--host", f"unix://{socket}"),
                *("--data-root", str(state / "data"), "--exec-root", str(run / "exec")),
                *("--pidfile", str(run / "pid"), "--bridge", "none"),
                *("--iptables=false", "--ip6tables=false"),
            ],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        engine = Engine("docker", ["/usr/bin/docker", "--host", f"unix://{socket}"], runner)
        deadline = time.monotonic() + DAEMON_START_SECONDS
        while not socket.exists():
            if daemon.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"cannot start dockerd: {log.read_text()[-1500:]}")
            time.sleep(0.1)
        engine.seconds("version")
        yield engine
    finally:
        daemon.send_signal(signal.SIGTERM)
        try:
            daemon.wait(30)
        except subprocess.TimeoutExpired:
            daemon.kill()
            daemon.wait()
        _remove(run)
        _remove(state)


@contextlib.contextmanager
def podman(folder: Path, runner: Runner) -> Iterator[Engine]:
    """Use podman with storage of our own; it has no daemon."""
    state = folder / "podman"
    run = Path("/run") / f"forkyard-bench-podman-{os.getpid()}"
    state.mkdir()
    run.mkdir(mode=0o700)
    engine = Engine(
        "podman",
        [
            *("/usr/bin/podman", "--root", str(state / "data"), "--runroot", str(run)),
            *("--tmpdir", str(run / "tmp"), "--cgroup-manager", "cgroupfs"),
            *("--storage-driver", "overlay", "--events-backend", "file", "--log-level", "error"),
        ],
        runner,
        _LIMITS,
    )
    try:
        yield engine
    finally:
        with contextlib.suppress(SystemExit):
            engine.seconds("rm", "--all", "--force")
            engine.seconds("rmi", "--all", "--force")
        _remove(run)
        _remove(state)


def _remove(folder: Path) -> None:
    """Remove an engine's folder; its layers were unmounted when its containers ended."""
    shutil.rmtree(folder, ignore_errors=True)
    if folder.exists():
        say(f"could not remove all of {folder}")
