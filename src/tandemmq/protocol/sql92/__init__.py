"""SQL92 filters over a message's properties: compiles text to a function. Pure.

`compile_filter` is the entry point. It loads the parser on its first call only, because most brokers never
filter by property.
"""

from tandemmq.protocol.sql92.filter import NODES_MAX, SqlFilter, compile_filter
from tandemmq.protocol.sql92.values import SqlError

__all__ = ["NODES_MAX", "SqlError", "SqlFilter", "compile_filter"]
