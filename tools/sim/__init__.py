"""Simulations from a seed: a store on a disk that fails, tears and forgets, under a clock that jumps.

Only tests and `python -m sim.crash` use this folder; nothing else imports it.
"""
