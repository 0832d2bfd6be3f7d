"""A machine with nothing but Debian on it: a root file system that is entered by pivot_root.

A chroot would not do: the kernel refuses user namespaces to a process in one. The host lends its
package sources, certificates and name service at run time; none of them is written down here.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

SUITE = "bookworm"
ENTER = r"""
set -eu
root=$1
shift
mount --bind "$root" "$root"
mount -t proc proc "$root/proc"
mount --rbind /sys "$root/sys"
mount --rbind /dev "$root/dev"
mount -t tmpfs -o mode=755 tmpfs "$root/run"
mkdir -p "$root/before"
cd "$root"
pivot_root . before
umount -l /before
rmdir /before
cd /
exec "$@"
"""
LENT_VARIABLES = re.compile(r"(?i)(https?|no|ftp)_proxy|PIP_(INDEX_URL|DEFAULT_TIMEOUT)")
LENT_FILES = ("/etc/resolv.conf", "/etc/hosts", "/etc/pip.conf")
CERTIFICATES = "/etc/ssl/certs/ca-certificates.crt"
LENT_CERTIFICATES = "/lent-certificates.crt"
"""Not where Debian keeps them: installing its own certificates would write over the host's."""


class BareMachine:
    """A root file system below a folder, and commands in it."""

    def __init__(self, root: Path) -> None:
        """Keep where it lies."""
        self.root = root

    def build(self) -> None:
        """Fill it with Debian's smallest set of packages, and lend it what the host has."""
        mirror, keyring = _sources()
        subprocess.run(
            [
                "debootstrap",
                "--variant=minbase",
                f"--keyring={keyring}",
                SUITE,
                str(self.root),
                mirror,
            ],
            check=True,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=1200,
        )
        for name in LENT_FILES:
            self._lend(Path(name))
        if Path(CERTIFICATES).exists():
            shutil.copy(CERTIFICATES, self.root / LENT_CERTIFICATES.lstrip("/"))
        (self.root / "etc/apt/sources.list").unlink(missing_ok=True)
        for folder in ("/etc/apt/sources.list.d", "/etc/apt/trusted.gpg.d", "/usr/share/keyrings"):
            for path in Path(folder).glob("*"):
                self._lend(path)
        self._lend(Path("/etc/apt/sources.list"))
        for path in Path("/etc/apt/apt.conf.d").glob("*"):
            if "Acquire" in path.read_text(errors="replace"):
                self._lend(path)

    def _lend(self, path: Path) -> None:
        if path.is_file():
            target = self.root / path.relative_to("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            target.unlink(missing_ok=True)
            shutil.copy(path, target)

    def run(self, command: str, *, timeout: float = 600.0) -> subprocess.CompletedProcess[str]:
        """Run a shell command there as root, in its own pid and mount namespaces."""
        variables = {
            "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME": "/root",
            "LC_ALL": "C.UTF-8",
            **dict.fromkeys(
                ("PIP_CERT", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "NODE_EXTRA_CA_CERTS"),
                LENT_CERTIFICATES,
            ),
            **{name: value for name, value in os.environ.items() if LENT_VARIABLES.fullmatch(name)},
        }
        return subprocess.run(
            [
                *("unshare", "--mount", "--pid", "--fork", "--kill-child"),
                *("--propagation", "private"),
                *("/bin/sh", "-c", ENTER, "enter", str(self.root), "/bin/sh", "-c", command),
            ],
            check=False,
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=timeout,
        )

    def bring(self, source: Path, names: Iterable[str], folder: str) -> None:
        """Copy files of the project to a folder there."""
        for name in names:
            target = self.root / folder.lstrip("/") / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source / name, target, follow_symlinks=False)


def _sources() -> tuple[str, str]:
    """Find the mirror and the keyring that the host itself uses."""
    texts = [
        path.read_text(errors="replace")
        for path in (
            *Path("/etc/apt").glob("sources.list"),
            *Path("/etc/apt/sources.list.d").glob("*.sources"),
            *Path("/etc/apt/sources.list.d").glob("*.list"),
        )
    ]
    for text in texts:
        found = re.search(r"(?m)^URIs:\s*(\S+)", text) or re.search(
            r"(?m)^deb\s+(?:\[[^\]]*\]\s+)?(\S+)\s+" + SUITE, text
        )
        if found and SUITE in text:
            return found[1], "/usr/share/keyrings/debian-archive-keyring.gpg"
    raise AssertionError(f"this host's package sources name no mirror for {SUITE}")
