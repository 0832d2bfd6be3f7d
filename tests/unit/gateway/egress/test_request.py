"""What may be asked of the proxy, and what a host is sent in its place."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forkyard.gateway.egress.request import RequestError, answer_head, read_request


def head(first: str, *fields: str) -> bytes:
    """Give a request's head."""
    return "\r\n".join((first, *fields, "", "")).encode("latin-1")


def get(*fields: str, target: str = "http://a.example.org/x") -> bytes:
    """Give a plain request's head."""
    return head(f"GET {target} HTTP/1.1", *fields)


def test_a_tunnel_is_read_when_it_names_a_host_and_a_port() -> None:
    """In the one plain form."""
    wanted = read_request(head("CONNECT A.Example.ORG:443 HTTP/1.1", "Host: whatever"))

    assert (wanted.host, wanted.port, wanted.is_tunnel) == ("a.example.org", 443, True)


@pytest.mark.parametrize(
    "target",
    [
        "a.example.org", "a.example.org:", "a.example.org:0", "a.example.org:65536",
        "a.example.org:443:1", "u@a.example.org:443", "u:p@a.example.org:443", "127.0.0.1:443",
        "[::1]:443", "0x7f000001:443", "2130706433:443", "a.example.org.:443", "http://a.b/:443",
        "a.example.org:443/", "a%2eexample.org:443", "a.example.org:+443", "a.example.org: 443",
        "a.example.org\\@b.example.org:443", "*.example.org:443", "localhost:443", "/", "*",
    ],
)  # fmt: skip
def test_a_tunnel_is_refused_when_its_target_is_odd(target: str) -> None:
    """Whatever one program might read otherwise than another."""
    with pytest.raises(RequestError):
        read_request(head(f"CONNECT {target} HTTP/1.1"))


@pytest.mark.parametrize(
    "request_head",
    [
        get(),
        get("Host: b.example.org"),
        get("Host: a.example.org", "Host: a.example.org"),
        get("Host: a.example.org:81"),
        get("Host : a.example.org"),
        get("Host: a.example.org", " folded: x"),
        get("Host: a.example.org", "X: a\nY: b"),
        get("Host: a.example.org", "X: a\rY: b"),
        get("Host: a.example.org", "X: a\0b"),
        get("Host: a.example.org", "Transfer-Encoding: chunked"),
        get("Host: a.example.org", "Transfer-Encoding : chunked"),
        get("Host: a.example.org", "Content-Length: 1", "Content-Length: 1"),
        get("Host: a.example.org", "Content-Length: +1"),
        get("Host: a.example.org", "Content-Length: 1, 1"),
        get("Host: a.example.org", "Content-Length: 0x1"),
        get("Host: a.example.org", "Content-Length: -1"),
        get("Host: a.example.org", *(f"X-{number}: 1" for number in range(100))),
        get("Host: a.example.org", target="/x"),
        get("Host: a.example.org", target="https://a.example.org/x"),
        get("Host: a.example.org", target="http://u@a.example.org/x"),
        get("Host: a.example.org", target="http://a.example.org#@b.example.org/x"),
        get("Host: a.example.org", target="http://b.example.org/x"),
        get("Host: a.example.org", target="http://127.0.0.1/x"),
        b"GET http://a.example.org/ HTTP/1.0\r\nHost: a.example.org\r\n\r\n",
        b"GET http://a.example.org/ HTTP/2\r\nHost: a.example.org\r\n\r\n",
        b"GET  http://a.example.org/ HTTP/1.1\r\nHost: a.example.org\r\n\r\n",
        b"GET http://a.example.org/\tx HTTP/1.1\r\nHost: a.example.org\r\n\r\n",
        b"GET http://a.example.org/ HTTP/1.1\nHost: a.example.org\r\n\r\n",
        b"\r\nGET http://a.example.org/ HTTP/1.1\r\nHost: a.example.org\r\n\r\n",
        b"\x16\x03\x01\r\n\r\n",
    ],
)
def test_a_plain_request_is_refused_when_it_could_be_read_in_two_ways(request_head: bytes) -> None:
    """One host, one length, one reading."""
    with pytest.raises(RequestError):
        read_request(request_head)


def test_a_plain_request_is_built_anew_when_it_is_passed_on() -> None:
    """Its path, its own fields, and that nothing comes after it; nothing for proxies is left."""
    wanted = read_request(
        get(
            "host: A.example.org:80",
            "Proxy-Authorization: Basic eA==",
            "Connection: keep-alive, x-secret",
            "X-Secret: 1",
            "Upgrade: websocket",
            "Expect: 100-continue",
            "Content-Length: 3",
            "Accept: */*",
            target="http://a.example.org?q=1",
        )
    )

    assert wanted.body_bytes == 3
    assert wanted.head == (
        b"GET /?q=1 HTTP/1.1\r\nHost: a.example.org\r\ncontent-length: 3\r\naccept: */*\r\n"
        b"Connection: close\r\n\r\n"
    )


@given(st.binary(max_size=300))
def test_bytes_of_any_kind_are_read_or_refused(content: bytes) -> None:
    """Nothing else is raised."""
    for whole in (content, content + b"\r\n\r\n", b"CONNECT " + content + b" HTTP/1.1\r\n\r\n"):
        with contextlib.suppress(RequestError):
            read_request(whole)


def test_an_answers_head_says_that_nothing_follows() -> None:
    """Whatever the host wished for the connection; an interim one says nothing."""
    whole = b"HTTP/1.1 200 OK\r\nConnection: keep-alive\r\nKeep-Alive: 5\r\nX: 1\r\n\r\n"

    assert answer_head(whole) == (b"HTTP/1.1 200 OK\r\nX: 1\r\nConnection: close\r\n\r\n", 200)
    assert answer_head(b"HTTP/1.1 103 Early\r\n\r\n") == (b"HTTP/1.1 103 Early\r\n\r\n", 103)
    with pytest.raises(RequestError):
        answer_head(b"SSH-2.0-x\r\n\r\n")
