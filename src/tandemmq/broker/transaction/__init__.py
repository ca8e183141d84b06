"""Transactions: half messages that wait for their producer's decision, and the checks that ask for it."""
