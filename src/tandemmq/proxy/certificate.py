"""The self-signed certificate of a proxy that is given none. Clients that use TLS by default do not check it
(spec proxy 1.2, 11.1).

The certificate and its key are in one file, which is made once and used by every later run: a file that is
replaced as a whole never holds the key of one run and the certificate of another.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from tandemmq.errors import ConfigError
from tandemmq.proxy.options import ProxyConfig
from tandemmq.remoting.options import TlsMode, TlsOptions
from tandemmq.runtime.ports import Clock, Disk

FILE_NAME: Final = "proxy-tls.pem"
VALID: Final = timedelta(days=3650)
CLOCK_SKEW: Final = timedelta(days=1)
"""The time before the creation from which the certificate is valid, for clients whose clock is behind."""
LOCAL_NAMES: Final = ("localhost", "127.0.0.1", "::1")
COMMON_NAME_MAX: Final = 64


def ensure_tls(config: ProxyConfig, *, disk: Disk, clock: Clock) -> TlsOptions:
    """Returns the TLS options of the port, with a certificate of the proxy's own if none is given.

    Raises:  ConfigError if there is none and the proxy must not make one, or it cannot be used.
    """
    tls, options = config.tls, config.options
    if tls.mode is TlsMode.DISABLED or tls.cert_path is not None:
        return tls
    if not options.makes_certificate:
        raise ConfigError(
            "tlsTestModeEnable=false needs tlsCertPath and tlsKeyPath, or tls.server.mode=disabled"
        )
    path = ensure_certificate(options.store_path, (options.local_host,), disk=disk, clock=clock)
    return replace(tls, cert_path=path, key_path=path)


def ensure_certificate(folder: Path, hosts: Iterable[str] = (), *, disk: Disk, clock: Clock) -> Path:
    """Returns the file with the certificate and its key, which is created if it does not exist.

    `hosts` are names and addresses of this machine for a new certificate, the first one as its subject.

    Raises:  ConfigError naming the file if it cannot be used or created.
    """
    path = folder / FILE_NAME
    try:
        if disk.exists(path):
            _check(disk.read_bytes(path))
        else:
            disk.write_atomically(path, _make([*hosts], clock), is_private=True)
    except OSError as error:
        raise ConfigError(f"{path}: the certificate cannot be read or created: {error.strerror}") from None
    except (ValueError, TypeError) as error:
        raise ConfigError(
            f"{path} is not a usable certificate with its key: {error}; remove the file, "
            "and the next start makes a new one"
        ) from None
    return path


def _check(content: bytes) -> None:
    """Raises ValueError unless the content is a certificate with its key."""
    certificate = x509.load_pem_x509_certificate(content)
    key = serialization.load_pem_private_key(content, password=None)
    if _public_bytes(key.public_key()) != _public_bytes(certificate.public_key()):
        raise ValueError("the key belongs to another certificate")


def _public_bytes(key: object) -> bytes:
    encode = key.public_bytes  # type: ignore[attr-defined]  # each kind of key has it
    encoded: bytes = encode(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    return encoded


def _make(hosts: list[str], clock: Clock) -> bytes:
    """Returns a new certificate and its key as PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name(
        [x509.NameAttribute(NameOID.COMMON_NAME, (hosts or ["localhost"])[0][:COMMON_NAME_MAX])]
    )
    now = datetime.fromtimestamp(clock.now_ms() / 1000, UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(now + VALID)
        .add_extension(x509.SubjectAlternativeName(_general_names([*hosts, *LOCAL_NAMES])), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .sign(key, hashes.SHA256())
    )
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ) + certificate.public_bytes(serialization.Encoding.PEM)


def _general_names(hosts: list[str]) -> list[x509.GeneralName]:
    """Returns each host once, as an address or a name; names that a certificate cannot hold are dropped."""
    names: list[x509.GeneralName] = []
    for host in dict.fromkeys(hosts):
        try:
            names.append(x509.IPAddress(ip_address(host)))
        except ValueError:
            if host.isascii() and host:
                names.append(x509.DNSName(host))
    return names
