"""An ordinary user with sub-ids, who exists in a mount namespace of ours and nowhere else.

The machine's own /etc is never written: in that namespace copies with one more user lie over it.
Programs that a closed folder keeps from others are shown there, too, so the tests' own Python is
his. Things that a host may lack or forbid are faked in the same way.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from xml.etree import ElementTree as ET

from leftovers import stop_all

ROOT = Path(__file__).resolve().parents[1]
NAME = "ordinary"
USER_ID = 23456
FIRST_SUB_USER = 0x6000_0000
FIRST_SUB_GROUP = 0x6100_0000
SUB_IDS = 65536
TIMEOUT_SECONDS = 500
_SHOW = "from forkyard.gateway import program_files; program_files.show()"
_REFUSE = (
    "import errno, os, sys; from forkyard.shim import kernel;"
    " kernel.load_seccomp(kernel.refuse_call(int(sys.argv[1]), errno.EACCES));"
    " os.execvp(sys.argv[2], sys.argv[2:])"
)
_PYTEST = (
    "import sys; from pathlib import Path; from forkyard.client.rootless import enter;"
    " enter(Path(sys.argv[1])); import pytest; sys.exit(pytest.main(sys.argv[2:]))"
)


class OrdinaryUser:
    """Runs commands as the user; see the module."""

    def __init__(self, folder: Path, holder: int) -> None:
        """Keep his folder and the process that holds his mount namespace."""
        self.folder = folder
        self.home = folder / "home"
        self.state = folder / "s"
        self._holder = holder
        self.groups: tuple[Path, ...] = ()
        """Cgroups that he is in: files that a process writes itself into."""

    def run(
        self,
        *argv: str | Path,
        directory: Path | None = None,
        variables: Mapping[str, str] | None = None,
        refused_call: int | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command to its end, in his home unless told otherwise.

        A system call can be refused with EACCES to all that he runs, as a security module does.
        """
        wrapped: list[str | Path] = [
            "sh", "-c", 'while [ "$1" != -- ]; do echo $$ >"$1"; shift; done; shift; exec "$@"',
            "sh", *self.groups, "--",
        ]  # fmt: skip
        if refused_call is not None:
            wrapped += ["env", f"PYTHONPATH={ROOT / 'src'}", sys.executable, "-B", "-c", _REFUSE]
            wrapped.append(str(refused_call))
        command = self._as_him(*argv, directory=directory, variables=variables)
        return self._finish(self._inside(*wrapped, *command))

    def command(
        self,
        *argv: str | Path,
        directory: Path | None = None,
        variables: Mapping[str, str] | None = None,
    ) -> list[str]:
        """Give the command line by which root runs a command as he does."""
        return self._inside(*self._as_him(*argv, directory=directory, variables=variables))

    def _as_him(
        self, *argv: str | Path, directory: Path | None, variables: Mapping[str, str] | None
    ) -> list[str | Path]:
        return [
            "setpriv", f"--reuid={USER_ID}", f"--regid={USER_ID}", "--clear-groups",
            "env", "-i", *(f"{name}={value}" for name, value in self.variables.items()),
            *(f"{name}={value}" for name, value in (variables or {}).items()),
            "sh", "-c", 'cd "$0" && exec "$@"', directory or self.home, *argv,
        ]  # fmt: skip

    @property
    def variables(self) -> dict[str, str]:
        """His environment."""
        return {
            "PATH": "/usr/bin:/bin",
            "HOME": str(self.home),
            "LANG": "C.UTF-8",
            "FORKYARD_HOME": str(self.state),
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONPATH": f"{ROOT / 'src'}:{ROOT / 'tests'}",
        }

    def forkyard(
        self, *arguments: str | Path, directory: Path | None = None, code: int | None = 0
    ) -> subprocess.CompletedProcess[str]:
        """Run the program as he does, and look at its exit code."""
        done = self.run(sys.executable, "-m", "forkyard", *arguments, directory=directory)
        assert code is None or done.returncode == code, f"{done.stdout}\n{done.stderr}"
        return done

    def tests(self, *arguments: str) -> dict[str, str]:
        """Run tests of ours as root over his sub-ids; give each one's outcome by its name."""
        report = self.folder / "report.xml"
        done = self.run(
            sys.executable, "-c", _PYTEST, self.state, "-q", "-p", "no:cacheprovider",
            "-p", "no:randomly", f"--junitxml={report}", f"--rootdir={ROOT}",
            f"--basetemp={self.folder / 'tmp'}", *arguments,
            directory=ROOT,
        )  # fmt: skip
        assert report.exists(), f"{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
        outcomes = {}
        for case in ET.parse(report).iter("testcase"):  # noqa: S314 - our own pytest's
            told = [child for child in case if child.tag in ("failure", "error", "skipped")]
            words = f"{told[0].tag}: {(told[0].text or '')[-3000:]}" if told else "passed"
            outcomes[case.get("name", "")] = words
        report.unlink()
        return outcomes

    def as_root(self, *argv: str | Path) -> subprocess.CompletedProcess[str]:
        """Run a command as root where he lives."""
        return self._finish(self._inside(*argv))

    def _inside(self, *argv: str | Path) -> list[str]:
        return ["nsenter", f"--mount=/proc/{self._holder}/ns/mnt", *map(str, argv)]

    @staticmethod
    def _finish(argv: list[str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            argv,
            check=False,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=TIMEOUT_SECONDS,
        )

    def put_over(self, path: str, content: str, *, mode: int = 0o644) -> None:
        """Let a file of the machine hold something else, for him alone."""
        ours = self.folder / f"over{path.replace('/', '-')}"
        ours.write_text(content, encoding="utf-8")
        ours.chmod(mode)
        done = self.as_root("mount", "--bind", ours, path)
        assert done.returncode == 0, done.stderr


@contextmanager
def ordinary_user(parent: Path) -> Iterator[OrdinaryUser]:
    """Make the user, with an empty home and state directory; all that he started ends with him.

    Args:
        parent: A folder that everybody may enter.
    """
    folder = Path(tempfile.mkdtemp(dir=parent, prefix="u"))
    folder.chmod(0o755)
    with subprocess.Popen(
        ["unshare", "--mount", "--propagation=private", "sh", "-c", "echo; exec sleep infinity"],
        stdout=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
    ) as holder:
        try:
            assert holder.stdout is not None
            holder.stdout.readline()
            user = OrdinaryUser(folder, holder.pid)
            for path in (user.home, user.state):
                path.mkdir(mode=0o700)
                os.chown(path, USER_ID, USER_ID)
            os.chown(folder, USER_ID, USER_ID)
            _enter_in_etc(user)
            _open_tun(user)
            shown = user.as_root(
                "env", f"PYTHONPATH={ROOT / 'src'}:{ROOT}", sys.executable, "-B", "-c", _SHOW
            )
            assert shown.returncode == 0, shown.stderr
            yield user
        finally:
            stop_all(folder)
            holder.kill()
    subprocess.run(["rm", "-rf", "--one-file-system", folder], check=True)


def _open_tun(user: OrdinaryUser) -> None:
    """Let everybody make tap devices of his own, as udev does; some machines have no udev."""
    node = user.folder / "tun"
    script = 'mknod -m 666 "$0" c 10 200 && mount --bind "$0" /dev/net/tun'
    done = user.as_root("sh", "-ec", script, node)
    assert done.returncode == 0, done.stderr


def _enter_in_etc(user: OrdinaryUser) -> None:
    rows = {
        "passwd": f"{NAME}:x:{USER_ID}:{USER_ID}::{user.home}:/bin/sh",
        "group": f"{NAME}:x:{USER_ID}:",
        "subuid": f"{NAME}:{FIRST_SUB_USER}:{SUB_IDS}",
        "subgid": f"{NAME}:{FIRST_SUB_GROUP}:{SUB_IDS}",
    }
    for name, row in rows.items():
        path = Path("/etc", name)
        user.put_over(str(path), f"{path.read_text(encoding='utf-8')}{row}\n")
