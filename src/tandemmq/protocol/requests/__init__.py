"""Typed headers of requests and responses, one file per capability; wire spellings are in the field
metadata.
"""
