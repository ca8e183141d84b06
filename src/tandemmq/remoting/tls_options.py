"""What servers and clients are told about TLS; RocketMQ's key stands beside each field (spec remoting 5)."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from tandemmq.errors import ConfigError


class TlsMode(Enum):
    """What a server does with connections that begin with a TLS ClientHello, and with those that do not."""

    DISABLED = "disabled"
    PERMISSIVE = "permissive"
    ENFORCING = "enforcing"


class ClientAuth(Enum):
    """Whether a server wants certificates of its clients."""

    NONE = "none"
    OPTIONAL = "optional"
    REQUIRE = "require"


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsClientOptions:
    """How to speak TLS to a server.

    trust_path        PEM file with the certificates of who may have signed the server's; None: those of the
                      system
    certificate_path  PEM file with the certificate that a server may ask for; None: there is none to show
    key_path          PEM file with its key; None: it is in the certificate's file
    key_password      of the key, when that is encrypted
    verifies_peer     whether the server's certificate must be signed by one of those in trust_path
    checks_name       whether it must also be made out for the host that is dialled
    """

    trust_path: Path | None = None
    certificate_path: Path | None = None
    key_path: Path | None = None
    key_password: str = field(default="", repr=False)
    verifies_peer: bool = True
    checks_name: bool = True

    def __post_init__(self) -> None:
        if self.key_path is not None and self.certificate_path is None:
            raise ConfigError("TlsClientOptions.key_path needs certificate_path")


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsOptions:
    """TLS of one server: what it accepts, and how it dials others.

    Without a certificate the permissive mode has nothing to offer: connections stay plain.
    """

    mode: TlsMode = TlsMode.PERMISSIVE  # tls.server.mode
    cert_path: Path | None = None  # tls.server.certPath
    key_path: Path | None = None  # tls.server.keyPath
    key_password: str = field(default="", repr=False)  # tls.server.keyPassword
    trust_path: Path | None = None  # tls.server.trustCertPath
    client_auth: ClientAuth = ClientAuth.NONE  # tls.server.need.client.auth

    dials_tls: bool | None = None  # tls.enable, useTLS; None: when the mode is enforcing
    client_cert_path: Path | None = None  # tls.client.certPath
    client_key_path: Path | None = None  # tls.client.keyPath
    client_key_password: str = field(default="", repr=False)  # tls.client.keyPassword
    client_trust_path: Path | None = None  # tls.client.trustCertPath
    verifies_server: bool = False  # tls.client.authServer

    def __post_init__(self) -> None:
        if (self.cert_path is None) != (self.key_path is None):
            raise ConfigError("cert_path and key_path belong together")
        if self.mode is TlsMode.ENFORCING and self.cert_path is None:
            raise ConfigError("mode enforcing needs cert_path and key_path")
        if self.client_auth is not ClientAuth.NONE and self.trust_path is None:
            raise ConfigError("client_auth needs trust_path: who signs the clients' certificates")

    @property
    def is_served(self) -> bool:
        return self.mode is not TlsMode.DISABLED and self.cert_path is not None

    @property
    def dialling(self) -> TlsClientOptions | None:
        """How this server speaks to others; None in plain. As in RocketMQ names are not checked: servers go
        by numeric addresses.
        """
        is_wanted = self.mode is TlsMode.ENFORCING if self.dials_tls is None else self.dials_tls
        if not is_wanted:
            return None
        return TlsClientOptions(
            trust_path=self.client_trust_path,
            certificate_path=self.client_cert_path,
            key_path=self.client_key_path,
            key_password=self.client_key_password,
            verifies_peer=self.verifies_server,
            checks_name=False,
        )


PLAIN = TlsOptions()
"""No certificate, no TLS."""
