"""The client library: producers, consumers and administration of a RocketMQ-compatible cluster.

`Producer`, `Consumer` and `Admin` are for asyncio; `BlockingProducer`, `BlockingConsumer` and
`BlockingAdmin` are the same for plain threads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tandemmq import names_on_demand

if TYPE_CHECKING:
    from tandemmq.client.admin import Admin
    from tandemmq.client.admin_base import QueueRange
    from tandemmq.client.admin_groups import GroupDescription
    from tandemmq.client.blocking_clients import (
        BlockingAdmin,
        BlockingConsumer,
        BlockingPopConsumer,
        BlockingProducer,
        BlockingPushConsumer,
        BlockingTransactionProducer,
    )
    from tandemmq.client.consumer.consumer import Consumer
    from tandemmq.client.consumer.key_workers import message_key
    from tandemmq.client.consumer.lag import QueueLag
    from tandemmq.client.consumer.pop import PopConsumer
    from tandemmq.client.consumer.push import PushConsumer
    from tandemmq.client.consumer.rebalance import (
        AllocateByConfig,
        AllocateByConsistentHash,
        AllocateByMachineRoom,
        AllocateMachineRoomNearby,
        allocate_averagely,
        allocate_by_circle,
    )
    from tandemmq.client.consumer.workers import ConsumeResult
    from tandemmq.client.hooks import ConsumeEvent, SendEvent
    from tandemmq.client.instance import ClientInstance
    from tandemmq.client.metrics import ClientMetrics
    from tandemmq.client.options import (
        ClientOptions,
        ConsumerOptions,
        PopOptions,
        ProducerOptions,
        PushOptions,
        ReadFrom,
        StartFrom,
    )
    from tandemmq.client.producer.producer import Producer, SendSummary
    from tandemmq.client.producer.results import SendResult, SendStatus
    from tandemmq.client.producer.transactions import (
        TransactionProducer,
        TransactionResult,
        TransactionState,
    )
    from tandemmq.client.serializers import Json, MsgPack, Serializer
    from tandemmq.errors import (
        BadRequest,
        BrokerUnreachable,
        Busy,
        ClientError,
        ConfigError,
        GroupExists,
        GroupNotFound,
        MessageIllegal,
        NoRoute,
        NotPermitted,
        OffsetOutOfRange,
        RemoteProtocolError,
        RequestRejected,
        RequestTimeout,
        ServiceNotAvailable,
        TandemError,
        TopicExists,
        TopicHasUnread,
        TopicNotFound,
    )
    from tandemmq.protocol.bodies import MessageQueue
    from tandemmq.protocol.bodies.client import MessageModel
    from tandemmq.protocol.compression import Compression
    from tandemmq.protocol.message import Message, PoppedMessage, ReceivedMessage
    from tandemmq.protocol.topic_names import decode_name, encode_name
    from tandemmq.remoting.options import TlsClientOptions

__all__ = [
    "Admin",
    "AllocateByConfig",
    "AllocateByConsistentHash",
    "AllocateByMachineRoom",
    "AllocateMachineRoomNearby",
    "BadRequest",
    "BlockingAdmin",
    "BlockingConsumer",
    "BlockingPopConsumer",
    "BlockingProducer",
    "BlockingPushConsumer",
    "BlockingTransactionProducer",
    "BrokerUnreachable",
    "Busy",
    "ClientError",
    "ClientInstance",
    "ClientMetrics",
    "ClientOptions",
    "Compression",
    "ConfigError",
    "ConsumeEvent",
    "ConsumeResult",
    "Consumer",
    "ConsumerOptions",
    "GroupDescription",
    "GroupExists",
    "GroupNotFound",
    "Json",
    "Message",
    "MessageIllegal",
    "MessageModel",
    "MessageQueue",
    "MsgPack",
    "NoRoute",
    "NotPermitted",
    "OffsetOutOfRange",
    "PopConsumer",
    "PopOptions",
    "PoppedMessage",
    "Producer",
    "ProducerOptions",
    "PushConsumer",
    "PushOptions",
    "QueueLag",
    "QueueRange",
    "ReadFrom",
    "ReceivedMessage",
    "RemoteProtocolError",
    "RequestRejected",
    "RequestTimeout",
    "SendEvent",
    "SendResult",
    "SendStatus",
    "SendSummary",
    "Serializer",
    "ServiceNotAvailable",
    "StartFrom",
    "TandemError",
    "TlsClientOptions",
    "TopicExists",
    "TopicHasUnread",
    "TopicNotFound",
    "TransactionProducer",
    "TransactionResult",
    "TransactionState",
    "allocate_averagely",
    "allocate_by_circle",
    "decode_name",
    "encode_name",
    "message_key",
]

__getattr__, __dir__ = names_on_demand(
    __name__,
    {
        "admin": ("Admin",),
        "admin_base": ("QueueRange",),
        "admin_groups": ("GroupDescription",),
        "blocking_clients": (
            "BlockingAdmin",
            "BlockingConsumer",
            "BlockingPopConsumer",
            "BlockingProducer",
            "BlockingPushConsumer",
            "BlockingTransactionProducer",
        ),
        "consumer.consumer": ("Consumer",),
        "consumer.key_workers": ("message_key",),
        "consumer.lag": ("QueueLag",),
        "consumer.pop": ("PopConsumer",),
        "consumer.push": ("PushConsumer",),
        "consumer.rebalance": (
            "AllocateByConfig",
            "AllocateByConsistentHash",
            "AllocateByMachineRoom",
            "AllocateMachineRoomNearby",
            "allocate_averagely",
            "allocate_by_circle",
        ),
        "consumer.workers": ("ConsumeResult",),
        "instance": ("ClientInstance",),
        "metrics": ("ClientMetrics",),
        "options": (
            "ClientOptions",
            "ConsumerOptions",
            "PopOptions",
            "ProducerOptions",
            "PushOptions",
            "ReadFrom",
            "StartFrom",
        ),
        "serializers": ("Json", "MsgPack", "Serializer"),
        "producer.producer": ("Producer", "SendSummary"),
        "producer.results": ("SendResult", "SendStatus"),
        "producer.transactions": ("TransactionProducer", "TransactionResult", "TransactionState"),
        "hooks": ("ConsumeEvent", "SendEvent"),
        "tandemmq.errors": (
            "BadRequest",
            "BrokerUnreachable",
            "Busy",
            "ClientError",
            "ConfigError",
            "GroupExists",
            "GroupNotFound",
            "MessageIllegal",
            "NoRoute",
            "NotPermitted",
            "OffsetOutOfRange",
            "RemoteProtocolError",
            "RequestRejected",
            "RequestTimeout",
            "ServiceNotAvailable",
            "TandemError",
            "TopicExists",
            "TopicHasUnread",
            "TopicNotFound",
        ),
        "tandemmq.protocol.bodies": ("MessageQueue",),
        "tandemmq.protocol.bodies.client": ("MessageModel",),
        "tandemmq.protocol.compression": ("Compression",),
        "tandemmq.protocol.message": ("Message", "PoppedMessage", "ReceivedMessage"),
        "tandemmq.protocol.topic_names": ("decode_name", "encode_name"),
        "tandemmq.remoting.options": ("TlsClientOptions",),
    },
)
