"""The bounds of connections, and the behaviour at each; the TLS settings of servers and clients, with
RocketMQ's key beside each field (spec remoting 5); and the text form of addresses.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from ipaddress import ip_address
from pathlib import Path

from tandemmq.errors import ConfigError
from tandemmq.protocol import setting_kinds as kinds
from tandemmq.protocol.setting_kinds import setting
from tandemmq.runtime.ports import Address
from tandemmq.units import MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelLimits:
    """The bounds of one connection; the same on both sides."""

    frame_bytes_max: int = 16 * MIB
    """The most bytes of a frame; a longer one closes the connection (spec remoting 1)."""
    requests_in_flight_max: int = 16_384
    """The most requests of ours without an answer; one more raises Busy."""
    tasks_max: int = 256
    """The most requests of the peer with a waiting handler; one more is answered SYSTEM_BUSY `[OVERLOAD]`."""
    write_buffer_high_bytes: int = 4 * MIB
    """The unsent bytes above which reading from the peer pauses, until they fall to a quarter."""
    write_buffer_bytes_max: int = 128 * MIB
    """The unsent bytes above which the peer is disconnected."""
    slow_reader_close_s: float = 30.0
    """The time after which a peer above the high-water mark that accepts no byte is disconnected."""
    close_linger_s: float = 5.0
    """The time that a closing connection may take to send the rest."""

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if getattr(self, name) <= 0:
                raise ConfigError(f"{name} must be positive, not {getattr(self, name)}")
        if self.write_buffer_high_bytes > self.write_buffer_bytes_max:
            raise ConfigError("write_buffer_high_bytes must not be above write_buffer_bytes_max")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """Bounds of a listening server."""

    limits: ChannelLimits = field(default_factory=ChannelLimits)
    idle_close_s: float = 120.0
    """The time after which a connection without a byte in either direction is closed (spec remoting 5), as is
    one with a single frame that takes longer.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionOptions:
    """Bounds of outgoing connections."""

    limits: ChannelLimits = field(default_factory=ChannelLimits)
    connect_timeout_s: float = 3.0
    call_timeout_s: float = 3.0
    """The timeout of requests that name none: RocketMQ's mqClientApiTimeout (spec semantics 25.1)."""
    idle_close_s: float = 120.0
    silent_close_s: float = 10.0
    """The silence after which a request that times out also closes its connection."""


class TlsMode(Enum):
    """The policy of a server for connections that begin with a TLS ClientHello, and for those that do not."""

    DISABLED = "disabled"
    PERMISSIVE = "permissive"
    ENFORCING = "enforcing"


class ClientAuth(Enum):
    """The policy of a server for client certificates."""

    NONE = "none"
    OPTIONAL = "optional"
    REQUIRE = "require"


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsClientOptions:
    """The settings for TLS to a server.

    trust_path        PEM file with the certificates that may have signed the server's; None: the system's
    certificate_path  PEM file with the certificate presented if the server asks for one; None: no certificate
    key_path          PEM file with its key; None: it is in the certificate's file
    key_password      of the key, if it is encrypted
    verifies_peer     True if the server's certificate must be signed by one of those in trust_path
    checks_name       True if the certificate must also name the host that is dialled
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
    """The TLS of one server, for accepted and outgoing connections.

    Without a certificate the permissive mode cannot offer TLS: connections stay plain.
    """

    mode: TlsMode = setting("tls.server.mode", TlsMode.PERMISSIVE)
    cert_path: Path | None = setting("tls.server.certPath", None, kinds.OPTIONAL_FILE)
    key_path: Path | None = setting("tls.server.keyPath", None, kinds.OPTIONAL_FILE)
    key_password: str = setting("tls.server.keyPassword", "", kinds.PASSWORD)
    trust_path: Path | None = setting("tls.server.trustCertPath", None, kinds.OPTIONAL_FILE)
    client_auth: ClientAuth = setting("tls.server.need.client.auth", ClientAuth.NONE)

    dials_tls: bool | None = setting("useTLS", None, kinds.FLAG)
    """None: True in enforcing mode."""
    client_cert_path: Path | None = setting("tls.client.certPath", None, kinds.OPTIONAL_FILE)
    client_key_path: Path | None = setting("tls.client.keyPath", None, kinds.OPTIONAL_FILE)
    client_key_password: str = setting("tls.client.keyPassword", "", kinds.PASSWORD)
    client_trust_path: Path | None = setting("tls.client.trustCertPath", None, kinds.OPTIONAL_FILE)
    verifies_server: bool = setting("tls.client.authServer", False)

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
        """The settings for connections to other servers; None without TLS.

        As in RocketMQ names are not checked, since servers use numeric addresses.
        """
        is_enabled = self.mode is TlsMode.ENFORCING if self.dials_tls is None else self.dials_tls
        if not is_enabled:
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
"""The options without a certificate and without TLS."""


def is_open_to_everybody(address: Address, tls: TlsOptions) -> bool:
    """Returns True if other machines reach a port bound to `address` without a certificate of their own.

    A host name stands for one of this machine's addresses, so it is judged by the name alone.
    """
    demands_certificate = tls.mode is TlsMode.ENFORCING and tls.client_auth is ClientAuth.REQUIRE
    return not demands_certificate and not is_loopback(address[0])


# Addresses: `host:port`, `[v6]:port`, and lists of them joined by `;`.

PORT_MAX = 65535


def parse_address(text: str) -> Address:
    """Returns (host, port); an IPv6 host may be in brackets or bare.

    Raises:  ConfigError quoting the text.
    """
    host, colon, port = text.strip().rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    is_port = port.isascii() and port.isdigit() and len(port) <= 5 and int(port) <= PORT_MAX
    if not colon or not host or not is_port or any(character in host for character in "[] ,;/"):
        raise ConfigError(f"{text!r} is not an address; expected host:port or [v6]:port")
    return host, int(port)


def is_loopback(host: str) -> bool:
    """Returns True if only this machine reaches `host`, a number or a name."""
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def render_address(address: Address) -> str:
    """Returns `host:port`, with brackets around an IPv6 host."""
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
