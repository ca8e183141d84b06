"""Producers: queue choice, batches and retries."""
