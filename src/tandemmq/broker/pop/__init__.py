"""Pop consumption: messages are leased, acknowledged one by one, and come again when nobody did (spec
semantics 14).
"""
