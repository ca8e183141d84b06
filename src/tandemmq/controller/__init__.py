"""The controller: one, three or five servers agree on the master of each group of brokers.

`groups` contains the agreed state with the rules by which it changes, and the brokers that one controller
hears. `elections` notices that a master is gone, `handlers` serves the requests, and `controller` composes
them.
"""
