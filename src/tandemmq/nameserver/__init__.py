"""The name server: a registry of brokers and their topics (spec nameserver)."""

from tandemmq.nameserver.nameserver import NameServer
from tandemmq.nameserver.options import NameServerOptions

__all__ = ["NameServer", "NameServerOptions"]
