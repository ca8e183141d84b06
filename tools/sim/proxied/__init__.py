"""Simulated clusters with gRPC proxies in front of their brokers, and clients of the proxies."""
