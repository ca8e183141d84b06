"""Mutated real frames against real processes: what a stranger on the network can and cannot do."""
