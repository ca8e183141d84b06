"""Connections that carry commands: a server, a client, and the channel used by both."""

from tandemmq.remoting.channel import Channel
from tandemmq.remoting.client import RemotingClient
from tandemmq.remoting.dispatch import Handler
from tandemmq.remoting.options import ChannelLimits, ConnectionOptions, ServerOptions
from tandemmq.remoting.server import RemotingServer
from tandemmq.runtime.tasks import OnFatal

__all__ = [
    "Channel",
    "ChannelLimits",
    "ConnectionOptions",
    "Handler",
    "OnFatal",
    "RemotingClient",
    "RemotingServer",
    "ServerOptions",
]
