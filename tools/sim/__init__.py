"""Seeded simulations: a store on a disk that fails, tears writes and loses data, under a clock that jumps.

Only tests and `python -m sim.crash` use this folder; nothing else imports it.
"""
