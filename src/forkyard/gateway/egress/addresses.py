"""Addresses that no sandbox reaches, whatever name leads there.

A name's owner says where it leads, so an allowed name may lead into the network this machine is
in. What is let through is public by the registries' lists, and the kernel says that the way there
leads out of this machine.
"""

from __future__ import annotations

import ipaddress
import socket
import struct

_V4 = (
    ("0.0.0.0/8", "of this network"),
    ("10.0.0.0/8", "private"),
    ("100.64.0.0/10", "shared by a provider's customers"),
    ("127.0.0.0/8", "loopback"),
    ("168.63.129.16/32", "a cloud's own"),
    ("169.254.0.0/16", "link-local, as metadata services are"),
    ("172.16.0.0/12", "private"),
    ("192.0.0.0/24", "reserved"),
    ("192.0.2.0/24", "for documentation"),
    ("192.88.99.0/24", "a 6to4 relay"),
    ("192.168.0.0/16", "private"),
    ("198.18.0.0/15", "for benchmarks"),
    ("198.51.100.0/24", "for documentation"),
    ("203.0.113.0/24", "for documentation"),
    ("224.0.0.0/4", "multicast"),
    ("240.0.0.0/4", "reserved"),
)
_V6 = (
    ("::1/128", "loopback"),
    ("::ffff:0:0/96", "an IPv4 address in disguise"),
    ("64:ff9b::/96", "translated to IPv4"),
    ("64:ff9b:1::/48", "translated to IPv4"),
    ("2001::/23", "reserved"),
    ("2001:db8::/32", "for documentation"),
    ("2002::/16", "6to4"),
    ("3fff::/20", "for documentation"),
    ("fc00::/7", "private"),
    ("fe80::/10", "link-local"),
    ("fec0::/10", "private"),
    ("ff00::/8", "multicast"),
)
_NETWORKS_4 = tuple((ipaddress.IPv4Network(network), words) for network, words in _V4)
_NETWORKS_6 = tuple((ipaddress.IPv6Network(network), words) for network, words in _V6)
_GLOBAL_6 = ipaddress.IPv6Network("2000::/3")
"""All that was ever given out to be reached from everywhere."""

_RTM_GETROUTE, _NLM_F_REQUEST = 26, 0x1
_RTM_NEWROUTE = 24
_RTN_UNICAST = 1
_RTA_DST = 1
_HEAD = struct.Struct("=IHHII")
_ROUTE = struct.Struct("=BBBBBBBBI")


def why_refused(text: str) -> str | None:
    """Say what an address is that no sandbox may reach; None: it is a public one."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return "no plain address"
    if isinstance(address, ipaddress.IPv4Address):
        return next((words for network, words in _NETWORKS_4 if address in network), None)
    if address.scope_id is not None:
        return "link-local"
    found = next((words for network, words in _NETWORKS_6 if address in network), None)
    return found or (None if address in _GLOBAL_6 else "reserved")


def leads_elsewhere(text: str) -> bool:
    """Say whether the kernel would send packets for an address out of this machine.

    Its own addresses, those it answers for, broadcast ones and black holes do not lead elsewhere.

    Raises:
        OSError: The kernel cannot be asked; nothing must be let through then.
    """
    address = ipaddress.ip_address(text)
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6  # noqa: PLR2004 - IPv4
    packed = address.packed
    route = _ROUTE.pack(family, len(packed) * 8, 0, 0, 0, 0, 0, 0, 0)
    body = route + struct.pack("=HH", 4 + len(packed), _RTA_DST) + packed
    head = _HEAD.pack(_HEAD.size + len(body), _RTM_GETROUTE, _NLM_F_REQUEST, 1, 0)
    kind = socket.SOCK_RAW | socket.SOCK_CLOEXEC
    with socket.socket(socket.AF_NETLINK, kind, socket.NETLINK_ROUTE) as link:
        link.settimeout(2.0)
        link.bind((0, 0))
        link.send(head + body)
        answer = link.recv(8192)
    _, answered, *_ = _HEAD.unpack_from(answer)
    if answered != _RTM_NEWROUTE:
        return False
    return bool(_ROUTE.unpack_from(answer, _HEAD.size)[7] == _RTN_UNICAST)
