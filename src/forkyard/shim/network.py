"""Network `open` for template builds: the internet by slirp4netns, never this host or its nets.

The sandbox's own namespace gets a tap device; slirp4netns, outside, speaks for it. The host's
loopback is disabled there; private, shared, link-local and metadata ranges are routed into
nothing inside, by routes that the container has no capability to change.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import signal
import socket
import struct

from forkyard.shim import kernel
from forkyard.shim.files import find_program

SEARCH_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
BLACKHOLES = (
    ("0.0.0.0", 8),  # noqa: S104 - a route, not an address to bind
    ("10.0.0.0", 8),
    ("100.64.0.0", 10),
    ("168.63.129.16", 32),
    ("169.254.0.0", 16),
    ("172.16.0.0", 12),
    ("192.0.0.0", 24),
    ("192.168.0.0", 16),
    ("198.18.0.0", 15),
    ("224.0.0.0", 4),
    ("240.0.0.0", 4),
)
"""As the allowlist refuses them, a cloud's own 168.63.129.16 among them.

slirp4netns's own 10.0.2.0/24 stays reachable, its route being the longer match."""

TUN = "/dev/net/tun"
NAMESERVER = "10.0.2.3"
_READY_SECONDS = 10.0

_RTM_NEWROUTE = 24
_NLM_F_REQUEST, _NLM_F_ACK, _NLM_F_EXCL, _NLM_F_CREATE = 0x1, 0x4, 0x200, 0x400
_RTN_BLACKHOLE = 6
_RTM_GETADDR, _RTM_NEWADDR, _NLMSG_DONE, _NLM_F_DUMP = 22, 20, 3, 0x300
_IFA_ADDRESS, _IFA_LOCAL = 1, 2
_HEAD_BYTES, _ADDRESS_BYTES = 16, 8
_SLIRP_NETWORK = "10.0.2."
_RT_TABLE_MAIN, _RTPROT_STATIC, _RT_SCOPE_UNIVERSE, _RTA_DST = 254, 4, 0, 1


class OpenNetwork:
    """The tap device and helper process of one sandbox."""

    def __init__(self, init_pid: int) -> None:
        """Keep whose network namespace to open."""
        self._init = init_pid
        self._helper = 0

    def start(self) -> None:
        """Open the network; returns when packets flow and the black holes are in force.

        Raises:
            OSError: slirp4netns is missing or did not come up; nothing is left running.
        """
        program = find_program("slirp4netns", SEARCH_PATH)
        if program is None:
            raise OSError(errno.ENOENT, "network `open` needs slirp4netns, which is not installed")
        if not os.access(TUN, os.R_OK | os.W_OK):
            raise OSError(
                errno.EACCES,
                f"network `open` needs {TUN} open to this user (root runs `chmod 666 {TUN}`)",
            )
        self._blackhole()
        ready_read, ready_write = os.pipe()
        self._helper = os.fork()
        if self._helper == 0:
            self._become_helper(program, ready_write)
        os.close(ready_write)
        try:
            readable, _, _ = select.select([ready_read], [], [], _READY_SECONDS)
            if not readable or os.read(ready_read, 1) != b"1":
                self.stop()
                raise OSError(errno.ENETUNREACH, "slirp4netns did not bring the network up")
        finally:
            os.close(ready_read)

    def _become_helper(self, program: str, ready: int) -> None:
        try:
            kernel.die_with_parent()
            null = os.open("/dev/null", os.O_RDWR)
            for number in (0, 1, 2):
                os.dup2(null, number)
            os.dup2(ready, 3)
            kernel.close_from(4)
            os.execve(
                program,
                [
                    program,
                    "--configure",
                    "--mtu=65520",
                    "--disable-host-loopback",
                    "--enable-sandbox",
                    "--enable-seccomp",
                    "--ready-fd=3",
                    str(self._init),
                    "tap0",
                ],
                {"PATH": SEARCH_PATH},
            )
        finally:
            os._exit(127)

    def stop(self) -> None:
        """End the helper. Idempotent."""
        if self._helper:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._helper, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(self._helper, 0)
            self._helper = 0

    def _blackhole(self) -> None:
        # What listens at all of this machine's addresses must not be reached by any of them.
        own = own_addresses()
        child = os.fork()
        if child == 0:
            status = 1
            try:
                descriptor = os.open(f"/proc/{self._init}/ns/net", os.O_RDONLY)
                kernel.setns(descriptor, kernel.CLONE_NEWNET)
                for network, bits in (*BLACKHOLES, *((one, 32) for one in own)):
                    _add_blackhole(network, bits)
                status = 0
            finally:
                os._exit(status)
        _, status = os.waitpid(child, 0)
        if status != 0:
            raise OSError(errno.EPERM, "cannot blackhole private networks inside the sandbox")


def own_addresses() -> list[str]:
    """List the IPv4 addresses of the network namespace that we are in, loopback's left out.

    Raises:
        OSError: The kernel does not tell.
    """
    head = struct.pack("=IHHII", 16 + 8, _RTM_GETADDR, _NLM_F_REQUEST | _NLM_F_DUMP, 1, 0)
    found: set[str] = set()
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as link:
        link.settimeout(_READY_SECONDS)
        link.bind((0, 0))
        link.send(head + struct.pack("=BBBBI", socket.AF_INET, 0, 0, 0, 0))
        while _take_addresses(link.recv(1 << 16), found):
            pass
    return sorted(one for one in found if not one.startswith(("127.", _SLIRP_NETWORK)))


def _take_addresses(answer: bytes, found: set[str]) -> bool:
    """Read one packet of the kernel's list; False at its end."""
    while len(answer) >= _HEAD_BYTES:
        length, kind = struct.unpack_from("=IH", answer)
        if kind == _NLMSG_DONE:
            return False
        if kind != _RTM_NEWADDR:
            raise OSError(errno.EIO, "the kernel does not tell this machine's addresses")
        place = 16 + 8
        while place + 4 <= length:
            size, attribute = struct.unpack_from("=HH", answer, place)
            if attribute in (_IFA_ADDRESS, _IFA_LOCAL) and size == _ADDRESS_BYTES:
                found.add(socket.inet_ntoa(answer[place + 4 : place + 8]))
            place += max(4, (size + 3) & ~3)
        answer = answer[(length + 3) & ~3 :]
    return True


def _add_blackhole(network: str, bits: int) -> None:
    address = socket.inet_aton(network)
    route = struct.pack(
        "=BBBBBBBBI",
        socket.AF_INET,
        bits,
        0,
        0,
        _RT_TABLE_MAIN,
        _RTPROT_STATIC,
        _RT_SCOPE_UNIVERSE,
        _RTN_BLACKHOLE,
        0,
    )
    attribute = struct.pack("=HH", 4 + len(address), _RTA_DST) + address
    body = route + attribute
    flags = _NLM_F_REQUEST | _NLM_F_ACK | _NLM_F_CREATE | _NLM_F_EXCL
    header = struct.pack("=IHHII", 16 + len(body), _RTM_NEWROUTE, flags, 1, 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as link:
        link.bind((0, 0))
        link.send(header + body)
        answer = link.recv(4096)
    code = struct.unpack_from("=i", answer, 16)[0]
    if code != 0:
        raise OSError(-code, os.strerror(-code))
