"""The source and sink `tandemmq`.

Spark imports every top-level module named `pyspark_*` and registers its `DefaultSource` (spec spark SP-45).
One broken module of that kind breaks the look-up of all Python sources (spec spark SP-46), so this module
contains nothing else.
"""

from tandemmq.spark.source import TandemSource as DefaultSource

__all__ = ["DefaultSource"]
