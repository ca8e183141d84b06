"""Connections that carry commands: a server, a client, and the channel used by both."""
