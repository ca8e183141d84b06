"""Agreement of a few servers on one log with Raft. `core` makes the decisions; `shell` connects it to the
disk, the clock and the peers.
"""
