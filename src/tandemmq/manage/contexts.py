"""Named clusters: addresses, credentials and TLS in a file of the user, and the one that a command uses.

Invariants: the file is readable by its owner only; another file is refused. No text form of a context
            contains its secret.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Final

import msgspec

from tandemmq.errors import ConfigError
from tandemmq.protocol.signature import Credentials
from tandemmq.remoting.options import TlsClientOptions
from tandemmq.runtime.disk import RealDisk

NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")
CONTEXTS_MAX: Final = 1_000


class ClusterContext(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One cluster of the user. `has_tls` without `tls_ca` trusts the system's certificates."""

    name_servers: str
    access_key: str = ""
    secret_key: str = ""
    has_tls: bool = False
    tls_ca: str = ""
    tls_cert: str = ""
    tls_key: str = ""

    def __repr__(self) -> str:
        return f"ClusterContext({self.name_servers!r})"

    @property
    def credentials(self) -> Credentials | None:
        """The credentials of requests; None for unsigned requests."""
        return Credentials(self.access_key, self.secret_key) if self.access_key else None

    @property
    def tls(self) -> TlsClientOptions | None:
        """The TLS of connections; None for plain text."""
        if not self.has_tls:
            return None
        ca, cert, key = (Path(path) if path else None for path in (self.tls_ca, self.tls_cert, self.tls_key))
        return TlsClientOptions(trust_path=ca, certificate_path=cert, key_path=key)


class ContextFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The contexts of the user by name, and the name of the one that commands use; empty for none."""

    contexts: dict[str, ClusterContext] = {}
    current: str = ""

    def find(self, name: str) -> ClusterContext:
        """Returns the context. Raises ConfigError with the known names."""
        if name not in self.contexts:
            known = ", ".join(sorted(self.contexts)) or "none; `tandemmq contexts set` makes one"
            raise ConfigError(f"unknown context {name!r}; known contexts: {known}")
        return self.contexts[name]

    def changed(self, **changes: Any) -> ContextFile:
        """Returns a copy with these changes."""
        return msgspec.structs.replace(self, **changes)


_ACTIVE: Final[ContextVar[ClusterContext | None]] = ContextVar("cluster_context", default=None)


def active_context() -> ClusterContext | None:
    """Returns the context of the running command; None if the environment describes the cluster."""
    return _ACTIVE.get()


@contextmanager
def use_context(context: ClusterContext | None) -> Iterator[None]:
    """Makes the context that of the command that runs inside."""
    token = _ACTIVE.set(context)
    try:
        yield
    finally:
        _ACTIVE.reset(token)


def contexts_path() -> Path:
    """Returns the path of the user's file."""
    root = os.environ.get("XDG_CONFIG_HOME") or ""
    folder = Path(root) if Path(root).is_absolute() else Path.home() / ".config"
    return folder / "tandemmq" / "contexts.json"


def read_contexts() -> ContextFile:
    """Returns the user's contexts; an empty file if there is none. Raises ConfigError for an unreadable or
    invalid file, or one that others can read.
    """
    path = contexts_path()
    try:
        if path.stat().st_mode & 0o077:
            raise ConfigError(f"{path}: other users can read its secrets; `chmod 600 {path}`")
        return msgspec.json.decode(path.read_bytes(), type=ContextFile)
    except FileNotFoundError:
        return ContextFile()
    except (OSError, msgspec.DecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"{path}: cannot be read: {reason}") from None


def write_contexts(file: ContextFile) -> None:
    """Replaces the user's file. Raises ConfigError when it would have more than `CONTEXTS_MAX` contexts."""
    if len(file.contexts) > CONTEXTS_MAX:
        raise ConfigError(f"there are {CONTEXTS_MAX} contexts already: delete one")
    data = msgspec.json.format(msgspec.json.encode(file))
    RealDisk().write_atomically(contexts_path(), data + b"\n", is_private=True)
