"""Sending: the producer, its queue choice, batches and retries."""
