"""Confirmations of changes: a change runs only on a second call, with the token that the first call returned.

The first call of a change tool returns a preview and a token; the operator of the assistant reads the
preview. A token belongs to one tool with one set of arguments, works once, and expires.

At a bound: with PENDING_MAX tokens open, the oldest is dropped; its change must be previewed again.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from tandemmq.errors import BadRequest

LIFETIME_S: Final = 300.0
PENDING_MAX: Final = 100
TOKEN_BYTES: Final = 16


@dataclass(slots=True)
class Confirmations:
    """The open tokens of one server. `now` returns monotonic seconds."""

    now: Callable[[], float]
    _pending: dict[str, tuple[str, float]] = field(default_factory=dict)
    """Token -> the change that it confirms, and the time at which it expires; oldest first."""

    def issue(self, tool: str, arguments: Mapping[str, object]) -> str:
        """Returns a new token for this change."""
        while len(self._pending) >= PENDING_MAX:
            del self._pending[next(iter(self._pending))]
        token = secrets.token_urlsafe(TOKEN_BYTES)
        self._pending[token] = (_identity(tool, arguments), self.now() + LIFETIME_S)
        return token

    def redeem(self, token: str, tool: str, arguments: Mapping[str, object]) -> None:
        """Uses up the token. Raises BadRequest if the token is unknown, expired, or of another change."""
        identity, expires_at = self._pending.pop(token, ("", 0.0))
        if not identity:
            raise BadRequest("unknown confirmation token; call again without one for a new preview")
        if self.now() >= expires_at:
            raise BadRequest(
                f"the confirmation token expired after {LIFETIME_S:.0f} s; "
                "call again without one for a new preview"
            )
        if identity != _identity(tool, arguments):
            raise BadRequest(
                "the confirmation token belongs to a call with other arguments; "
                "call again without one for a new preview"
            )


def _identity(tool: str, arguments: Mapping[str, object]) -> str:
    return json.dumps([tool, dict(sorted(arguments.items()))])
