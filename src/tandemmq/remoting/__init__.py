"""Connections that carry commands: a server, a client, and the channel that both are made of."""

from tandemmq.remoting.channel import Channel
from tandemmq.remoting.client import RemotingClient
from tandemmq.remoting.dispatch import Handler, OnFatal
from tandemmq.remoting.options import ChannelLimits, ConnectionOptions, ServerOptions
from tandemmq.remoting.server import RemotingServer

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
