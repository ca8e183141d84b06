"""The controller: who is master of each group of brokers, agreed by one, three or five servers.

`groups` is the state they agree on and the rules by which it changes, `live` what each of them sees of the
brokers, `handlers` the requests, `controller` the whole.
"""
