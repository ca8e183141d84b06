"""The controller: one, three or five servers agree on the master of each group of brokers.

`groups` contains the replicated state with the rules by which it changes, and the heartbeats that one
controller receives. `elections` detects the loss of a master, `history` compares the state with the brokers'
reports, `handlers` serves the requests, and `controller` composes them.
"""
