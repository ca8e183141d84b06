"""The gRPC proxy: RocketMQ 5 clients in front of any brokers.

`grpc_server` is the transport; `rpc` is the seam to the handlers, which turn an rpc into requests to brokers.
"""
