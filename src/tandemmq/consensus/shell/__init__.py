"""Raft on a machine: its files, and the server that runs the core with clock and peers."""
