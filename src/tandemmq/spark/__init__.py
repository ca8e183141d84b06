"""The data pipeline: a Spark source for topics, a Parquet lake, and ready-made pipelines between the two.

The pure parts (`options`, `columns`, `decode`, `offsets`, `packing`) import neither pyspark nor the network
and hold all rules; `wire`, `metadata` and `fetch` speak to name servers and brokers; `source` and
`stream` are thin classes that Spark calls. Nothing here imports the broker.

Importing this package is cheap on purpose: every executor and planner process of Spark does it.
"""
