"""What a person types: a cluster on this machine, messages in and out, and what is wrong."""
