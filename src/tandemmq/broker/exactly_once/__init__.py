"""Sends that are stored once however often they are repeated: claims, and what is known of each producer."""
