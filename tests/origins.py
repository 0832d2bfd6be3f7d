"""Hosts for an internet of a test's own: each answers in a thread, and remembers what it was asked.

They stand for hosts that an allowlist names, and for those that nobody may reach: that the latter
were never asked anything is worth something because they would have answered.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import socket
import ssl
import threading
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


class Origin:
    """Answers HTTP at one listening socket, over TLS where it is given a context."""

    def __init__(self, listener: socket.socket, tls: ssl.SSLContext | None = None) -> None:
        """Begin to answer."""
        self.asked: list[bytes] = []
        """Everything that each connection sent, in the order in which they began."""
        self.connections = 0
        self._listener = listener
        self._tls = tls
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        place = len(self.asked)
        self.asked.append(b"")
        with contextlib.suppress(OSError):
            connection.settimeout(10)
            if self._tls is not None:
                connection = self._tls.wrap_socket(connection, server_side=True)
            with connection:
                while b"\r\n\r\n" not in self.asked[place]:
                    chunk = connection.recv(65536)
                    if not chunk:
                        return
                    self.asked[place] += chunk
                connection.sendall(
                    b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\nConnection: keep-alive\r\n\r\nhello\n"
                )
                connection.shutdown(socket.SHUT_WR)
                while chunk := connection.recv(65536):
                    self.asked[place] += chunk

    def close(self) -> None:
        """Answer no more."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join(5)
        self._listener.close()


def certificate(folder: Path, *names: str) -> ssl.SSLContext:
    """Make a server's context with a certificate for names, signed by itself; `ca.pem` has it."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "a test's authority")])
    now = dt.datetime.now(tz=dt.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName(list(map(x509.DNSName, names))), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = made.public_bytes(serialization.Encoding.PEM)
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    (folder / "ca.pem").write_bytes(pem)
    (folder / "server.pem").write_bytes(private + pem)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "server.pem")
    return context


def client_hello(name: str | None) -> bytes:
    """Give what a TLS client says first, for a name or for none."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    client = context.wrap_bio(incoming, outgoing, server_hostname=name)
    with contextlib.suppress(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()
