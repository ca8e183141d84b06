"""Reading messages, and waiting for them."""
