"""The work of applications with a simulated cluster besides plain sends and pulls, each kind with its own
ledger.

A seed draws some kinds. Each kind is a process that uses the client library, or sends the requests of other
clients, on topics of its own. `WorkNode` is their common base; `kinds` is the list.
"""
