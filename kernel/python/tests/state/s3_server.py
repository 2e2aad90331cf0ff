"""An S3 server for tests: moto's, in memory. Run by an environment that has moto.

    s3_server.py CERTIFICATE      the file gets the certificate of the encrypted port

Beside S3 it knows `POST /-/fault?after=N&kind=KIND` (from the N-th request on: a status, `drop`, `stall` or `slow`;
`none` ends it) and `GET /-/log`, the requests since it was last asked. It prints its plain and its
encrypted port and ends with its standard input.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
import ssl
import sys
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from moto.server import create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server

_BODY = "<?xml version='1.0'?><Error><Code>{0}</Code><Message>made by the test</Message></Error>"


class Faulty:
    """S3, and what goes wrong with it."""

    def __init__(self, app: Callable[..., Iterable[bytes]]) -> None:
        self.app = app
        self.lock = threading.Lock()
        self.log: list[str] = []
        self.left, self.kind = 0, "none"

    def __call__(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        path = environ["PATH_INFO"]
        if path == "/-/fault":
            asked = parse_qs(environ["QUERY_STRING"])
            with self.lock:
                self.left, self.kind = int(asked["after"][0]), asked["kind"][0]
            return self.say(start, "200 OK", "")
        if path == "/-/log":
            with self.lock:
                said, self.log = "\n".join(self.log), []
            return self.say(start, "200 OK", said)
        with self.lock:
            self.log.append(f"{environ['REQUEST_METHOD']} {path}")
            self.left -= 1
            kind = self.kind if self.left < 0 else "none"
        if kind in ("none", "slow"):
            time.sleep(0.2 if kind == "slow" else 0)
            return self.app(environ, start)
        if kind == "drop":
            raise ConnectionResetError
        if kind == "stall":
            time.sleep(30)
        environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        return self.say(start, f"{kind} Made", _BODY.format(f"Code{kind}"))

    def say(self, start: Callable[..., Any], status: str, text: str) -> Iterable[bytes]:
        start(status, [("Content-Length", str(len(text)))])
        return [text.encode()]


class Quiet(WSGIRequestHandler):
    """Writes no log, and keeps connections."""

    protocol_version = "HTTP/1.1"

    def log(self, *args: Any) -> None: ...


def encrypted(certificate: Path) -> ssl.SSLContext:
    """An encrypted port's settings, with a certificate for this machine made now."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "a test")])
    now = datetime.datetime.now(datetime.timezone.utc)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), False)
        .sign(key, hashes.SHA256())
    )
    certificate.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    private = certificate.with_suffix(".key")
    pem = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    private.write_bytes(key.private_bytes(*pem))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, private)
    return context


def main() -> None:
    """Serve until standard input ends."""
    app = Faulty(create_backend_app("s3"))
    for secure in (None, encrypted(Path(sys.argv[1]))):
        server = make_server("127.0.0.1", 0, app, threaded=True, request_handler=Quiet, ssl_context=secure)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        print(server.server_port, flush=True)
    sys.stdin.read()
    os._exit(0)


main()
