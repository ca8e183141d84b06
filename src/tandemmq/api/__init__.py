"""Typed calls to name servers and brokers: one async function per request.

The first arguments of each function are the RemotingClient and the peer's `host:port`. It returns a value or
raises an error of the tree in `tandemmq.errors`. The functions keep no state and do not retry; callers do.
"""
