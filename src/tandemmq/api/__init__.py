"""Typed calls to name servers and brokers: one async function per request.

Each takes the RemotingClient and the peer's `host:port` first and returns a value or raises an error of the
tree in `tandemmq.errors`. Nothing here keeps state or retries: that is the caller's business.
"""
