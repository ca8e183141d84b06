"""Raft on a machine: the files, and the server that runs the core with a clock and peers."""
