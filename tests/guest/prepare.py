"""What a guest boots from and is heavy to make: once, into .cache, by ./dev before deep tests.

Only here is anything fetched: Debian's own packages from the mirror that this machine installs
from, and the pinned Python packages by pip.
"""

from __future__ import annotations

import fcntl
import gzip
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from stand_ins.image import mirror_of_this_machine
from stand_ins.packages import SUITE

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / ".cache" / "guest"
PINS = ROOT / "requirements" / "dev.txt"
KERNEL = "linux-image-cloud-amd64"
"""Debian's smallest; it has ext4 built in, and the disks of QEMU as modules."""
PROGRAMS = (
    *("python3", "git", "crun", "libseccomp2", "slirp4netns", "uidmap"),
    *("iproute2", "kmod", "procps", "e2fsprogs", "busybox-static"),
)
PYTHON = "3.11"
"""Of Debian 12."""
DISK_MODULES = ("virtio_pci", "virtio_blk")
_FREE_BYTES = 1536 * 1024**2
_KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The files that QEMU is given."""

    kernel: Path
    first: Path
    """The initramfs: loads the modules of the disks."""
    disk: Path
    """The root file system; a guest writes to a copy of its own."""


def prepare(say: Callable[[str], None] = lambda _: None) -> Machine:
    """Give the machine, made where it is not there yet or its recipe has changed.

    Args:
        say: Told what takes a while.
    """
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        place = CACHE / f"machine-{_fingerprint()}"
        if not place.exists():
            for old in CACHE.glob("machine-*"):
                shutil.rmtree(old)
            say("making the machine with Debian's kernel that tests boot; some minutes, once")
            # debootstrap takes no path with a space, and ours may lie below one
            with (
                tempfile.TemporaryDirectory(dir="/var/tmp") as plain,
                tempfile.TemporaryDirectory(dir=CACHE) as scratch,
            ):
                whole = Path(scratch) / "made"
                whole.mkdir()
                _make(whole, Path(plain))
                whole.rename(place)
    return Machine(kernel=place / "kernel", first=place / "first", disk=place / "disk")


def _fingerprint() -> str:
    digest = hashlib.sha256()
    for path in (Path(__file__), Path(__file__).with_name("first.sh"), PINS):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _make(whole: Path, scratch: Path) -> None:
    root = scratch / "root"
    _run(
        *("debootstrap", "--variant=minbase", f"--keyring={_KEYRING}"),
        *(f"--include={','.join(PROGRAMS)}", SUITE, root, mirror_of_this_machine()),
    )
    shutil.rmtree(root / "var/cache/apt")
    _run(
        *(sys.executable, "-m", "pip", "install", "-qq", "--disable-pip-version-check"),
        *("--no-input", "--no-deps", "--require-hashes", "--only-binary", ":all:", "--no-compile"),
        *("--python-version", PYTHON, "--requirement", PINS),
        *("--target", root / f"usr/local/lib/python{PYTHON}/dist-packages"),
    )
    # An emulated processor takes half a minute for what this one does in a second.
    _run("chroot", root, "python3", "-m", "compileall", "-q", "/usr/local/lib")
    modules = _install_kernel(root, whole, scratch)
    _make_initramfs(modules, root / "usr/bin/busybox", whole / "first", scratch / "first")
    _make_disk(root, whole / "disk")


def _install_kernel(root: Path, whole: Path, scratch: Path) -> Path:
    depends = _run("apt-cache", "depends", "--important", KERNEL)
    (package,) = [line.split()[-1] for line in depends.splitlines() if "Depends:" in line]
    _run("apt-get", "download", "-q", package, directory=scratch)
    (archive,) = scratch.glob("*.deb")
    _run("dpkg-deb", "-x", archive, scratch / "kernel")
    (image,) = scratch.glob("kernel/boot/vmlinuz-*")
    shutil.copyfile(image, whole / "kernel")
    release = image.name.removeprefix("vmlinuz-")
    modules = root / "usr/lib/modules" / release
    shutil.copytree(scratch / "kernel/lib/modules" / release, modules)
    _run("chroot", root, "depmod", release)
    return modules


def _make_initramfs(modules: Path, busybox: Path, target: Path, folder: Path) -> None:
    for name in ("modules", "dev", "root"):
        (folder / name).mkdir(parents=True)
    shutil.copy(busybox, folder / "busybox")
    shutil.copy(Path(__file__).with_name("first.sh"), folder / "init")
    (folder / "init").chmod(0o755)
    needs = {}
    for line in (modules / "modules.dep").read_text().splitlines():
        path, _, others = line.partition(":")
        needs[Path(path).stem] = [path, *others.split()]
    # Each line names first what needs the rest, and last what needs nothing.
    order = dict.fromkeys(path for name in DISK_MODULES for path in reversed(needs[name]))
    for path in order:
        shutil.copy(modules / path, folder / "modules")
    names = "".join(f"{Path(path).name}\n" for path in order)
    (folder / "modules" / "order").write_text(names)
    listed = "\n".join(str(path.relative_to(folder)) for path in sorted(folder.rglob("*")))
    packed = subprocess.run(
        [busybox, "cpio", "-o", "-H", "newc"],
        cwd=folder,
        input=listed.encode(),
        capture_output=True,
        check=True,
    )
    target.write_bytes(gzip.compress(packed.stdout, 1))


def _make_disk(root: Path, target: Path) -> None:
    used = int(_run("du", "-s", "--block-size=1", root).split()[0])
    with target.open("wb") as file:
        file.truncate(used + used // 4 + _FREE_BYTES)
    _run("mkfs.ext4", "-q", "-d", root, target)


def _run(*argv: str | Path, directory: Path | None = None) -> str:
    done = subprocess.run(
        argv,
        check=False,
        cwd=directory,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env={**os.environ, "PATH": f"{os.environ['PATH']}:{_PATH}", "LC_ALL": "C.UTF-8"},
    )
    assert done.returncode == 0, f"{argv[0]} ended with {done.returncode}: {done.stdout[-4000:]}"
    return done.stdout
