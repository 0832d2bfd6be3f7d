"""Addresses that no name may lead to."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forkyard.gateway.egress.addresses import why_refused


@pytest.mark.parametrize(
    "address",
    [
        "0.0.0.0", "0.1.2.3", "10.0.0.1", "100.64.0.1", "100.100.100.200", "127.0.0.1",  # noqa: S104 - refused
        "127.255.255.254", "169.254.169.254", "172.16.0.1", "172.31.255.255", "192.0.0.192",
        "192.168.0.1", "198.18.0.1", "203.0.113.9", "224.0.0.1", "239.1.1.1", "255.255.255.255",
        "240.0.0.1", "168.63.129.16", "192.88.99.1", "::", "::1", "::ffff:8.8.8.8",
        "::ffff:127.0.0.1", "64:ff9b::7f00:1", "64:ff9b:1::1", "2002:7f00:1::", "2001::1",
        "2001:db8::1", "fc00::1", "fd00:ec2::254", "fe80::1", "fe80::1%eth0", "fec0::1", "ff02::1",
        "::127.0.0.1", "100::1", "3fff::1", "5f00::1", "x", "1.2.3", "08.8.8.8",
    ],
)  # fmt: skip
def test_an_address_is_refused_when_it_is_not_public(address: str) -> None:
    """Private, special, translated, disguised, metadata, or no address at all."""
    assert why_refused(address)


@pytest.mark.parametrize(
    "address", ["1.1.1.1", "8.8.8.8", "11.22.33.44", "172.32.0.1", "2606:4700::1111", "2a0b:11::1"]
)
def test_an_address_is_let_through_when_it_is_public(address: str) -> None:
    """What everybody reaches."""
    assert why_refused(address) is None


@given(st.ip_addresses())
def test_nothing_is_let_through_that_the_registries_call_special(
    address: ipaddress.IPv4Address | ipaddress.IPv6Address,
) -> None:
    """The standard library's own table is another's opinion; ours must be at least as strict."""
    if not address.is_global or address.is_multicast or address.is_reserved:
        assert why_refused(str(address))


@given(st.ip_addresses(v=4))
def test_an_ipv4_address_is_refused_in_every_disguise(address: ipaddress.IPv4Address) -> None:
    """As a mapped, compatible or translated IPv6 address, public or not."""
    for form in (f"::ffff:{address}", f"::{address}", f"64:ff9b::{address}"):
        assert why_refused(form)
