"""The gRPC proxy: RocketMQ 5 clients in front of any brokers.

`grpc` is the transport, `rpc` the seam to the handlers, which turn an rpc into requests to brokers.
"""
