"""The data pipeline: a Spark source and sink for topics, lakes, and ready-made pipelines between them.

The pure parts (`options`, `columns`, `decode`, `offsets`, `packing`) import neither pyspark nor the network
and contain all rules. `wire`, `metadata` and `fetch` talk to name servers and brokers. `source` and `stream`
are thin classes that Spark calls. Nothing here imports the broker.

Importing this package must stay cheap: every executor and planner process of Spark does it.
"""
