"""Typed headers of requests and responses, one file per capability; wire spellings live in the field
metadata.
"""
