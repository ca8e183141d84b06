"""The signature that tells who sends a request: HMAC-SHA1 over its fields and body.

One implementation for who signs (clients, brokers, the Spark source) and who checks (brokers).
Source: spec remoting 7, spec semantics 21.1.
"""

from __future__ import annotations

import hmac
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from tandemmq.protocol.command import Command
from tandemmq.units import Buffer

ACCESS_KEY: Final = "AccessKey"
SECURITY_TOKEN: Final = "SecurityToken"
SIGNATURE: Final = "Signature"

UNSIGNED_QUERY_FIELD: Final = "_UNIQUE_KEY_QUERY"
VERSION_SIGNS_QUERY_FIELD: Final = 401
"""Clients up to V4_9_3 add that field after they have signed."""


def signature_of(fields: Mapping[str, str], body: Buffer, secret_key: bytes) -> str:
    """Base64 of the HMAC over the values in the order of their names, then the body."""
    content = "".join([fields[name] for name in sorted(fields) if name != SIGNATURE])
    return b64encode(hmac.digest(secret_key, content.encode() + bytes(body), "sha1")).decode()


def is_signed_with(command: Command, secret_key: bytes) -> bool:
    """Whether the request carries the signature of somebody who knows the secret key.

    Go clients leave the security token out of what they sign, Java clients sign it: both are taken.
    """
    fields = command.fields
    given = fields.get(SIGNATURE)
    if not given:
        return False
    if UNSIGNED_QUERY_FIELD in fields and command.version < VERSION_SIGNS_QUERY_FIELD:
        fields = {name: text for name, text in fields.items() if name != UNSIGNED_QUERY_FIELD}
    if _is_same(given, signature_of(fields, command.body, secret_key)):
        return True
    if SECURITY_TOKEN not in fields:
        return False
    fields = {name: text for name, text in fields.items() if name != SECURITY_TOKEN}
    return _is_same(given, signature_of(fields, command.body, secret_key))


def _is_same(given: str, expected: str) -> bool:
    return hmac.compare_digest(given.encode("utf-8", "replace"), expected.encode())


@dataclass(frozen=True, slots=True)
class Credentials:
    """Who signs, and with what; the secret is in no text of this object."""

    access_key: str
    secret_key: str = field(repr=False)
    security_token: str = field(default="", repr=False)

    def sign(self, command: Command) -> None:
        """Adds who asks and the signature; signing again replaces both.

        The typed header becomes plain fields, because its texts are needed for the signature anyway.
        """
        fields = {**command.fields, ACCESS_KEY: self.access_key}
        if self.security_token:
            fields[SECURITY_TOKEN] = self.security_token
        fields[SIGNATURE] = signature_of(fields, command.body, self.secret_key.encode())
        command.header = None
        command.extra_fields = fields
