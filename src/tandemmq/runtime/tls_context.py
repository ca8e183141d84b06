"""TLS contexts from certificate files: the door to the machine's cryptography.

TLS 1.2 and later; no renegotiation, which only costs the server.
"""

from __future__ import annotations

import ssl
from pathlib import Path

from tandemmq.errors import ConfigError


def make_server_context(
    cert_path: Path,
    key_path: Path,
    *,
    key_password: str = "",
    trust_path: Path | None = None,
    needs_client: bool = False,
) -> ssl.SSLContext:
    """For connections that we accept. With `trust_path` clients are asked for a certificate, with
    `needs_client` they must have one.

    Raises:  ConfigError naming the file that cannot be used.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _restrict(context)
    _load_chain(context, cert_path, key_path, key_password)
    if trust_path is not None:
        _load_trust(context, trust_path)
        context.verify_mode = ssl.CERT_REQUIRED if needs_client else ssl.CERT_OPTIONAL
    return context


def make_client_context(
    *,
    trust_path: Path | None = None,
    certificate_path: Path | None = None,
    key_path: Path | None = None,
    key_password: str = "",
    verifies_peer: bool = True,
    checks_name: bool = True,
) -> ssl.SSLContext:
    """For connections that we dial. A peer is verified against `trust_path`, else against the machine's own
    certificates; with `certificate_path` we show one ourselves.

    Raises:  ConfigError naming the file that cannot be used.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    _restrict(context)
    context.check_hostname = verifies_peer and checks_name
    if not verifies_peer:
        context.verify_mode = ssl.CERT_NONE
    elif trust_path is not None:
        _load_trust(context, trust_path)
    else:
        context.load_default_certs()
    if certificate_path is not None:
        _load_chain(context, certificate_path, key_path or certificate_path, key_password)
    return context


def _restrict(context: ssl.SSLContext) -> None:
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION


def _load_chain(context: ssl.SSLContext, cert_path: Path, key_path: Path, password: str) -> None:
    try:
        # Never asks at the terminal: without a password an encrypted key is an error.
        context.load_cert_chain(cert_path, key_path, password=lambda: password)
    except (OSError, ValueError) as error:
        raise ConfigError(f"certificate {cert_path} with key {key_path} cannot be used: {error}") from None


def _load_trust(context: ssl.SSLContext, path: Path) -> None:
    try:
        context.load_verify_locations(cafile=path)
    except (OSError, ValueError) as error:
        raise ConfigError(f"trusted certificates {path} cannot be used: {error}") from None
