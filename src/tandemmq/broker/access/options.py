"""What a broker is told about access control; RocketMQ's key stands beside each field."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tandemmq.errors import ConfigError
from tandemmq.protocol.signature import Credentials


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessOptions:
    """Both kinds of rules may be on; then a request must pass both."""

    acl_enable: bool = False  # aclEnable: the rules of plain_acl.yml
    acl_directory: Path = Path("conf")  # aclConfigDir (ours): holds plain_acl.yml, acl/*.yml and tools.yml
    authentication_enabled: bool = False  # authenticationEnabled
    authorization_enabled: bool = False  # authorizationEnabled
    authentication_white_codes: frozenset[int] = frozenset()  # authenticationWhitelist: request codes
    authorization_white_codes: frozenset[int] = frozenset()  # authorizationWhitelist
    first_user: Credentials | None = None  # initAuthenticationUser: a super user, made when it is missing
    inner_credentials: Credentials | None = None  # innerClientAuthenticationCredentials

    def __post_init__(self) -> None:
        if self.authorization_enabled and not self.authentication_enabled:
            raise ConfigError(
                "authorization_enabled needs authentication_enabled: else anybody could take any name"
            )

    @property
    def is_on(self) -> bool:
        return self.acl_enable or self.authentication_enabled


OPEN = AccessOptions()
"""Everybody may do everything."""
