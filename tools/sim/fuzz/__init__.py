"""Fuzzing: mutated real frames against real processes, showing what a stranger on the network can do."""
