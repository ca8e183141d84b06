"""Seeded simulations of whole clusters: real brokers, name servers and clients on one loop with virtual time.

Only tests and `python -m sim.cluster.run` use this folder; nothing else imports it.
"""
