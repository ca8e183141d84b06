"""Pop consumption: messages are leased, acknowledged one by one, and redelivered when their lease ends
without
an acknowledgement (spec semantics 14).
"""
