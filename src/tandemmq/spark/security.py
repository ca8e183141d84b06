"""Who a query is and how it reaches servers: the signature of requests, and TLS.

Secrets travel to the executors inside the options and are shown nowhere: not in texts, offsets or plans.
Source: spec remoting 7 (signature), 1 (TLS).
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field

from tandemmq.errors import ConfigError
from tandemmq.protocol.command import Command
from tandemmq.protocol.signature import Credentials


@dataclass(frozen=True, slots=True, kw_only=True)
class Security:
    """Credentials and TLS settings of one query; empty texts for what is not used."""

    access_key: str = ""
    secret_key: str = field(default="", repr=False)
    security_token: str = field(default="", repr=False)
    is_tls: bool = False
    ca_path: str = ""
    certificate_path: str = ""
    key_path: str = ""
    verifies_peer: bool = True

    def sign(self, command: Command) -> None:
        """Adds who asks, and the signature over all fields and the body."""
        if not self.access_key:
            return
        Credentials(self.access_key, self.secret_key, self.security_token).sign(command)

    def wrap(self, connection: socket.socket, host: str) -> socket.socket:
        """The connection itself, or TLS over it.

        Raises:  OSError when the peer speaks no TLS or is not who it should be; ConfigError when a file of
                 the options cannot be used here.
        """
        if not self.is_tls:
            return connection
        try:
            return self._context().wrap_socket(connection, server_hostname=host)
        except (OSError, ConfigError):
            connection.close()
            raise

    def _context(self) -> ssl.SSLContext:
        try:
            context = ssl.create_default_context(cafile=self.ca_path or None)
        except OSError as error:
            raise ConfigError(f"the option tls.ca: {self.ca_path} cannot be used here: {error}") from None
        if not self.verifies_peer:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if self.certificate_path:
            try:
                context.load_cert_chain(self.certificate_path, self.key_path or None)
            except OSError as error:
                files = f"{self.certificate_path} with the key in {self.key_path or 'the same file'}"
                raise ConfigError(
                    f"the options tls.certificate and tls.key: {files} cannot be used here: {error}"
                ) from None
        return context


OPEN = Security()
"""No credentials, no TLS."""


def parse_security(values: Mapping[str, str], *, is_tls: bool, verifies_peer: bool) -> Security:
    """The security options of a query.

    Raises:  ConfigError naming the option that is missing.
    """
    access_key, secret_key = values.get("accessKey", ""), values.get("secretKey", "")
    if bool(access_key) != bool(secret_key):
        raise ConfigError("the options accessKey and secretKey belong together")
    if values.get("securityToken") and not access_key:
        raise ConfigError("the option securityToken needs accessKey and secretKey")
    details = [name for name in ("tls.ca", "tls.certificate", "tls.key") if values.get(name)]
    if details and not is_tls:
        raise ConfigError(f"the option {details[0]} needs tls=true")
    if "tls.key" in details and "tls.certificate" not in details:
        raise ConfigError("the option tls.key needs tls.certificate")
    return Security(
        access_key=access_key,
        secret_key=secret_key,
        security_token=values.get("securityToken", ""),
        is_tls=is_tls,
        ca_path=values.get("tls.ca", ""),
        certificate_path=values.get("tls.certificate", ""),
        key_path=values.get("tls.key", ""),
        verifies_peer=verifies_peer,
    )
