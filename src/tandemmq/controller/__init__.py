"""The controller: who is master of each group of brokers, agreed by one, three or five servers.

`groups` is the state they agree on, the rules by which it changes, and what each of them hears of the
brokers. `elections` notices that a master is gone, `handlers` serves the requests, `controller` is the whole.
"""
