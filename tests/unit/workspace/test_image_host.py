"""What image `host` shows of a machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from forkyard.model.workspace import NetworkPolicy
from forkyard.workspace.image_host import HostEntry, host_packages, host_root


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """Build a small machine with secrets beside what a sandbox needs."""
    for name in ("usr/bin", "usr/share/zoneinfo", "etc/ssl/certs", "etc/ssl/private", "root/.ssh"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "bin").symlink_to("usr/bin")
    (tmp_path / "lib").mkdir()
    (tmp_path / "usr/share/zoneinfo/UTC").write_text("zone")
    (tmp_path / "etc/localtime").symlink_to("/usr/share/zoneinfo/UTC")
    (tmp_path / "etc/passwd").write_text("alice:x:1000:1000::/home/alice:/bin/sh\n")
    (tmp_path / "etc/shadow").write_text("secret")
    (tmp_path / "etc/pip.conf").write_text("password")
    (tmp_path / "etc/services").write_text("http 80/tcp\n")
    (tmp_path / "etc/rpc").write_text("kept from others")
    (tmp_path / "etc/rpc").chmod(0o600)
    return tmp_path


def _by_target(machine: Path) -> dict[str, HostEntry]:
    return {entry.target: entry for entry in host_root(host=str(machine))}


def test_programs_are_bound_and_old_links_kept_when_listing(machine: Path) -> None:
    """/usr is a bind; a merged folder stays a link, an unmerged one is bound."""
    entries = _by_target(machine)
    assert entries["/usr"] == HostEntry(kind="bind", target="/usr", source=str(machine / "usr"))
    assert entries["/bin"] == HostEntry(kind="symlink", target="/bin", source="usr/bin")
    assert entries["/lib"].kind == "bind"


def test_nothing_secret_appears_when_the_machine_has_some(machine: Path) -> None:
    """Accounts, passwords, keys, registry settings and private files stay out."""
    entries = _by_target(machine)
    for hidden in ("/etc/shadow", "/etc/pip.conf", "/etc/ssl/private", "/etc/rpc", "/root/.ssh"):
        assert hidden not in entries
    assert b"alice" not in (entries["/etc/passwd"].content or b"")
    assert entries["/etc/services"].content == b"http 80/tcp\n"
    assert entries["/etc/localtime"].source == "/usr/share/zoneinfo/UTC"


def test_parents_come_first_when_entries_are_nested(machine: Path) -> None:
    """Whoever creates the entries in order never misses a folder."""
    seen = {"/"}
    for entry in host_root(host=str(machine)):
        assert str(Path(entry.target).parent) in seen
        assert entry.target not in seen
        seen.add(entry.target)


def test_a_resolver_is_named_only_when_the_network_is_open(machine: Path) -> None:
    """Without a network there is nobody to ask."""
    entry = {e.target: e for e in host_root(network=NetworkPolicy.OPEN, host=str(machine))}
    assert b"nameserver" in (entry["/etc/resolv.conf"].content or b"")
    assert b"nameserver" not in (_by_target(machine)["/etc/resolv.conf"].content or b"")


def test_the_package_digest_changes_when_a_package_does(machine: Path) -> None:
    """Unknown package managers give None, a known one a digest of its state."""
    assert host_packages(host=str(machine)) is None
    status = machine / "var/lib/dpkg/status"
    status.parent.mkdir(parents=True)
    status.write_text("Package: a\n")
    before = host_packages(host=str(machine))
    status.write_text("Package: b\n")
    assert before != host_packages(host=str(machine))
