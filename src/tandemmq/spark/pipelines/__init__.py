"""Ready-made pipelines on plain Structured Streaming, run by our own runner (spec spark 6)."""
