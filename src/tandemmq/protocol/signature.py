"""The signature that proves the sender of a request: HMAC-SHA1 over its fields and body.

Signers (clients, brokers, tools, the Spark source) and verifiers (brokers, controllers) share this
implementation.

RocketMQ signs the field values in the order of the field names, without separators. Its signature therefore
covers neither the request code nor the names and borders of the fields: a reader of one signed request can
build others with the same text (the weak form). Our clients add a field, the digest, that sorts before every
other field and holds a hash of the code and of the names and lengths of all fields. RocketMQ signs and
verifies it like any other value.

Invariants:
- The signed text of a request with a digest begins with DIGEST_MARK. A text with that beginning is never
  accepted in the weak form, so such a request cannot be turned into another one, whatever the verifier
  admits.

Source:  spec remoting 7, spec semantics 21.1.
"""

from __future__ import annotations

import hashlib
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
DIGEST_FIELD: Final = "!tm"
"""The name of the digest field, which is ours; it sorts before the names of all other fields."""
DIGEST_MARK: Final = "tm1;"
DIGEST_CHARS: Final = 32

UNSIGNED_QUERY_FIELD: Final = "_UNIQUE_KEY_QUERY"
VERSION_SIGNS_QUERY_FIELD: Final = 401
"""The first client version that signs that field; clients up to V4_9_3 add it after signing."""


def signed_text(fields: Mapping[str, str], body: Buffer) -> bytes:
    """Returns the values in the order of their names, without the signature itself, then the body."""
    content = "".join([fields[name] for name in sorted(fields) if name != SIGNATURE])
    return content.encode() + bytes(body)


def signature_of(fields: Mapping[str, str], body: Buffer, secret_key: bytes) -> str:
    """Returns the Base64 form of the HMAC over `signed_text`."""
    return b64encode(hmac.digest(secret_key, signed_text(fields, body), "sha1")).decode()


def digest_of(code: int, fields: Mapping[str, str]) -> str:
    """Returns the digest: a hash of the code and of the name and length of each signed field.

    Empty fields are left out, because the binary form of a header drops them (spec remoting 3).
    """
    parts = [
        f"{len(name)}:{name}{len(fields[name])};"
        for name in sorted(fields)
        if fields[name] and name not in (SIGNATURE, DIGEST_FIELD)
    ]
    digest = hashlib.sha256(f"{code};{''.join(parts)}".encode()).hexdigest()
    return DIGEST_MARK + digest[:DIGEST_CHARS]


def signature_fault(command: Command, secret_key: bytes, *, admits_weak: bool = True) -> str | None:
    """Returns the reason why the request does not prove knowledge of the secret key; None if it does.

    `admits_weak`: accept RocketMQ's form, which covers neither code nor field names. In that form Go clients
    leave the security token out of the signed text, and Java clients sign it; both are accepted.
    """
    fields = command.fields
    signature = fields.get(SIGNATURE)
    if not signature:
        return f"{SIGNATURE} is missing"
    if DIGEST_FIELD in fields:
        is_whole = min(fields) == DIGEST_FIELD and fields[DIGEST_FIELD] == digest_of(command.code, fields)
        is_signed = _is_signature(signature, signed_text(fields, command.body), secret_key)
        return None if is_whole and is_signed else "the signature is wrong"
    if not admits_weak:
        return (
            "the signature covers neither the request code nor the names of the fields;"
            " here only clients of TandemMQ are admitted (weakSignatureEnable=false)"
        )
    if UNSIGNED_QUERY_FIELD in fields and command.version < VERSION_SIGNS_QUERY_FIELD:
        fields = {name: text for name, text in fields.items() if name != UNSIGNED_QUERY_FIELD}
    if _is_weakly_signed(signature, fields, command.body, secret_key):
        return None
    if SECURITY_TOKEN in fields:
        fields = {name: text for name, text in fields.items() if name != SECURITY_TOKEN}
        if _is_weakly_signed(signature, fields, command.body, secret_key):
            return None
    return "the signature is wrong"


def _is_weakly_signed(signature: str, fields: Mapping[str, str], body: Buffer, secret_key: bytes) -> bool:
    text = signed_text(fields, body)
    # A text with this beginning was signed with a digest; with other names it would be another request.
    return not text.startswith(DIGEST_MARK.encode()) and _is_signature(signature, text, secret_key)


def _is_signature(signature: str, text: bytes, secret_key: bytes) -> bool:
    expected = b64encode(hmac.digest(secret_key, text, "sha1"))
    return hmac.compare_digest(signature.encode("utf-8", "replace"), expected)


@dataclass(frozen=True, slots=True)
class Credentials:
    """The keys of a signer; no text form of this object contains the secret."""

    access_key: str
    secret_key: str = field(repr=False)
    security_token: str = field(default="", repr=False)

    def sign(self, command: Command) -> None:
        """Adds the access key, the digest and the signature; signing again replaces all three.

        The typed header becomes plain fields, because its texts are needed for the signature anyway.
        """
        fields = {**command.fields, ACCESS_KEY: self.access_key}
        if self.security_token:
            fields[SECURITY_TOKEN] = self.security_token
        fields[DIGEST_FIELD] = digest_of(command.code, fields)
        fields[SIGNATURE] = signature_of(fields, command.body, self.secret_key.encode())
        command.header = None
        command.extra_fields = fields
