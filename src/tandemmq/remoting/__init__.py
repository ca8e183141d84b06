"""Connections that carry commands: server, client, and the channel they share."""
