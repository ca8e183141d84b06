"""Agreement of a few servers on one log: Raft. `core` decides, `shell` has the disk, the clock and the
peers."""
