"""Server-side assignment: which queues each consumer of a group gets, and whether by pulls or pops (spec
semantics 20.1).
"""
