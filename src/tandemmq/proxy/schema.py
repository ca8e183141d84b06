"""The protobuf messages of `apache.rocketmq.v2`, made from a table of their fields; `add_file` makes those of
another package.

A row `name number kind` is a field; `*` before the kind repeats it, `?` gives it explicit presence, and
`/group` after it makes it one of a group. A row `name request response` is an rpc; `*` before a message makes
it a stream. A row `name` is an rpc whose messages are its Request and its Response. The classes are in a
descriptor pool of their own, so that a process may also import a client's generated classes.

Source: spec proxy 2.1 to 2.7, 10.4.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, duration_pb2, message_factory, timestamp_pb2

PACKAGE: Final = "apache.rocketmq.v2"

_ENUMS: Final = {
    "AddressScheme": "ADDRESS_SCHEME_UNSPECIFIED 0, IPv4 1, IPv6 2, DOMAIN_NAME 3",
    "Permission": "PERMISSION_UNSPECIFIED 0, NONE 1, READ 2, WRITE 3, READ_WRITE 4",
    "FilterType": "FILTER_TYPE_UNSPECIFIED 0, TAG 1, SQL 2",
    "MessageType": "MESSAGE_TYPE_UNSPECIFIED 0, NORMAL 1, FIFO 2, DELAY 3, TRANSACTION 4, LITE 5, PRIORITY 6",
    "DigestType": "DIGEST_TYPE_UNSPECIFIED 0, CRC32 1, MD5 2, SHA1 3",
    "Encoding": "ENCODING_UNSPECIFIED 0, IDENTITY 1, GZIP 2",
    "ClientType": "CLIENT_TYPE_UNSPECIFIED 0, PRODUCER 1, PUSH_CONSUMER 2, SIMPLE_CONSUMER 3, "
    "PULL_CONSUMER 4, LITE_PUSH_CONSUMER 5, LITE_SIMPLE_CONSUMER 6",
    "TransactionResolution": "TRANSACTION_RESOLUTION_UNSPECIFIED 0, COMMIT 1, ROLLBACK 2",
    "TransactionSource": "SOURCE_UNSPECIFIED 0, SOURCE_CLIENT 1, SOURCE_SERVER_CHECK 2",
    "Language": "LANGUAGE_UNSPECIFIED 0, JAVA 1, CPP 2, DOT_NET 3, GOLANG 4, RUST 5, PYTHON 6, PHP 7,"
    " NODE_JS 8, RUBY 9, OBJECTIVE_C 10, DART 11, KOTLIN 12",
    "QueryOffsetPolicy": "BEGINNING 0, END 1, TIMESTAMP 2",
    "LiteSubscriptionAction": "PARTIAL_ADD 0, PARTIAL_REMOVE 1, COMPLETE_ADD 2, COMPLETE_REMOVE 3",
}

_TIME: Final = "google.protobuf.Timestamp"
_SPAN: Final = "google.protobuf.Duration"

_MESSAGES: Final = {
    # `code` is an enum on the wire; as an int32 it is the same bytes, and unknown numbers need no care.
    "Status": "code 1 int32, message 2 string",
    "Resource": "resource_namespace 1 string, name 2 string",
    "Address": "host 1 string, port 2 int32",
    "Endpoints": "scheme 1 AddressScheme, addresses 2 *Address",
    "Broker": "name 1 string, id 2 int32, endpoints 3 Endpoints",
    "MessageQueue": "topic 1 Resource, id 2 int32, permission 3 Permission, broker 4 Broker,"
    " accept_message_types 5 *MessageType",
    "Assignment": "message_queue 1 MessageQueue",
    "FilterExpression": "type 1 FilterType, expression 2 string",
    "SubscriptionEntry": "topic 1 Resource, expression 2 FilterExpression",
    "Digest": "type 1 DigestType, checksum 2 string",
    "DeadLetterQueue": "topic 1 string, message_id 2 string",
    "SystemProperties": "tag 1 ?string, keys 2 *string, message_id 3 string, body_digest 4 Digest,"
    " body_encoding 5 Encoding, message_type 6 MessageType, born_timestamp 7 TIME, born_host 8 string,"
    " store_timestamp 9 ?TIME, store_host 10 string, delivery_timestamp 11 ?TIME, receipt_handle 12 ?string,"
    " queue_id 13 int32, queue_offset 14 ?int64, invisible_duration 15 ?SPAN, delivery_attempt 16 ?int32,"
    " message_group 17 ?string, trace_context 18 ?string, orphaned_transaction_recovery_duration 19 ?SPAN,"
    " dead_letter_queue 20 ?DeadLetterQueue, lite_topic 21 ?string, priority 22 ?int32",
    "Message": "topic 1 Resource, user_properties 2 map, system_properties 3 SystemProperties, body 4 bytes",
    "ExponentialBackoff": "initial 1 SPAN, max 2 SPAN, multiplier 3 float",
    "CustomizedBackoff": "next 1 *SPAN",
    "RetryPolicy": "max_attempts 1 int32, exponential_backoff 2 ExponentialBackoff/strategy,"
    " customized_backoff 3 CustomizedBackoff/strategy",
    "UA": "language 1 Language, version 2 string, platform 3 string, hostname 4 string",
    "Metric": "on 1 bool, endpoints 2 ?Endpoints",
    "Publishing": "topics 1 *Resource, max_body_size 2 int32, validate_message_type 3 bool",
    "Subscription": "group 1 ?Resource, subscriptions 2 *SubscriptionEntry, fifo 3 ?bool,"
    " receive_batch_size 4 ?int32, long_polling_timeout 5 ?SPAN, lite_subscription_quota 6 ?int32,"
    " max_lite_topic_size 7 ?int32",
    "Settings": "client_type 1 ?ClientType, access_point 2 ?Endpoints, backoff_policy 3 ?RetryPolicy,"
    " request_timeout 4 ?SPAN, publishing 5 Publishing/pub_sub, subscription 6 Subscription/pub_sub,"
    " user_agent 7 UA, metric 8 Metric, client_properties 9 map",
    "ThreadStackTrace": "nonce 1 string, thread_stack_trace 2 ?string",
    "VerifyMessageResult": "nonce 1 string",
    "RecoverOrphanedTransactionCommand": "message 1 Message, transaction_id 2 string",
    "PrintThreadStackTraceCommand": "nonce 1 string",
    "VerifyMessageCommand": "nonce 1 string, message 2 Message",
    "ReconnectEndpointsCommand": "nonce 1 string",
    "NotifyUnsubscribeLiteCommand": "lite_topic 1 string",
    "TelemetryCommand": "status 1 ?Status, settings 2 Settings/command,"
    " thread_stack_trace 3 ThreadStackTrace/command, verify_message_result 4 VerifyMessageResult/command,"
    " recover_orphaned_transaction_command 5 RecoverOrphanedTransactionCommand/command,"
    " print_thread_stack_trace_command 6 PrintThreadStackTraceCommand/command,"
    " verify_message_command 7 VerifyMessageCommand/command,"
    " reconnect_endpoints_command 8 ReconnectEndpointsCommand/command,"
    " notify_unsubscribe_lite_command 9 NotifyUnsubscribeLiteCommand/command",
    "QueryRouteRequest": "topic 1 Resource, endpoints 2 Endpoints",
    "QueryRouteResponse": "status 1 Status, message_queues 2 *MessageQueue",
    "QueryAssignmentRequest": "topic 1 Resource, group 2 Resource, endpoints 3 Endpoints",
    "QueryAssignmentResponse": "status 1 Status, assignments 2 *Assignment",
    "SendMessageRequest": "messages 1 *Message",
    "SendResultEntry": "status 1 Status, message_id 2 string, transaction_id 3 string, offset 4 int64,"
    " recall_handle 5 string",
    "SendMessageResponse": "status 1 Status, entries 2 *SendResultEntry",
    "ReceiveMessageRequest": "group 1 Resource, message_queue 2 MessageQueue,"
    " filter_expression 3 FilterExpression, batch_size 4 int32, invisible_duration 5 ?SPAN,"
    " auto_renew 6 bool, long_polling_timeout 7 ?SPAN, attempt_id 8 ?string",
    "ReceiveMessageResponse": "status 1 Status/content, message 2 Message/content,"
    " delivery_timestamp 3 TIME/content",
    "AckMessageEntry": "message_id 1 string, receipt_handle 2 string, lite_topic 3 ?string",
    "AckMessageRequest": "group 1 Resource, topic 2 Resource, entries 3 *AckMessageEntry",
    "AckMessageResultEntry": "message_id 1 string, receipt_handle 2 string, status 3 Status",
    "AckMessageResponse": "status 1 Status, entries 2 *AckMessageResultEntry",
    "ForwardMessageToDeadLetterQueueRequest": "group 1 Resource, topic 2 Resource, receipt_handle 3 string,"
    " message_id 4 string, delivery_attempt 5 int32, max_delivery_attempts 6 int32, lite_topic 7 ?string",
    "ForwardMessageToDeadLetterQueueResponse": "status 1 Status",
    "ChangeInvisibleDurationRequest": "group 1 Resource, topic 2 Resource, receipt_handle 3 string,"
    " invisible_duration 4 SPAN, message_id 5 string, lite_topic 6 ?string, suspend 7 ?bool",
    "ChangeInvisibleDurationResponse": "status 1 Status, receipt_handle 2 string",
    "EndTransactionRequest": "topic 1 Resource, message_id 2 string, transaction_id 3 string,"
    " resolution 4 TransactionResolution, source 5 TransactionSource, trace_context 6 string",
    "EndTransactionResponse": "status 1 Status",
    "HeartbeatRequest": "group 1 ?Resource, client_type 2 ClientType",
    "HeartbeatResponse": "status 1 Status",
    "NotifyClientTerminationRequest": "group 1 ?Resource",
    "NotifyClientTerminationResponse": "status 1 Status",
    "RecallMessageRequest": "topic 1 Resource, recall_handle 2 string",
    "RecallMessageResponse": "status 1 Status, message_id 2 string",
    "PullMessageRequest": "group 1 Resource, message_queue 2 MessageQueue, offset 3 int64,"
    " batch_size 4 int32, filter_expression 5 FilterExpression, long_polling_timeout 6 SPAN",
    "PullMessageResponse": "status 1 Status/content, message 2 Message/content, next_offset 3 int64/content",
    "UpdateOffsetRequest": "group 1 Resource, message_queue 2 MessageQueue, offset 3 int64",
    "UpdateOffsetResponse": "status 1 Status",
    "GetOffsetRequest": "group 1 Resource, message_queue 2 MessageQueue",
    "GetOffsetResponse": "status 1 Status, offset 2 int64",
    "QueryOffsetRequest": "message_queue 1 MessageQueue, query_offset_policy 2 QueryOffsetPolicy,"
    " timestamp 3 ?TIME",
    "QueryOffsetResponse": "status 1 Status, offset 2 int64",
    "OffsetOption": "policy 1 int32/kind, offset 2 int64/kind, tail_n 3 int64/kind, timestamp 4 int64/kind",
    "SyncLiteSubscriptionRequest": "action 1 LiteSubscriptionAction, topic 2 Resource, group 3 Resource,"
    " lite_topic_set 4 *string, version 5 ?int64, offset_option 6 ?OffsetOption",
    "SyncLiteSubscriptionResponse": "status 1 Status",
}

_SERVICE: Final = (
    "QueryRoute, Heartbeat, SendMessage, QueryAssignment,"
    " ReceiveMessage ReceiveMessageRequest *ReceiveMessageResponse, AckMessage,"
    " ForwardMessageToDeadLetterQueue, PullMessage PullMessageRequest *PullMessageResponse, UpdateOffset,"
    " GetOffset, QueryOffset, EndTransaction, Telemetry *TelemetryCommand *TelemetryCommand,"
    " NotifyClientTermination, ChangeInvisibleDuration, RecallMessage, SyncLiteSubscription"
)

_Field = descriptor_pb2.FieldDescriptorProto
_SCALARS: Final = {
    "string": _Field.TYPE_STRING,
    "bytes": _Field.TYPE_BYTES,
    "bool": _Field.TYPE_BOOL,
    "int32": _Field.TYPE_INT32,
    "int64": _Field.TYPE_INT64,
    "float": _Field.TYPE_FLOAT,
}


def _rows(text: str) -> list[list[str]]:
    return [row.split() for row in text.split(",")]


_pool = descriptor_pool.DescriptorPool()


def add_file(
    name: str,
    package: str,
    messages: Mapping[str, str],
    *,
    enums: Mapping[str, str],
    services: Mapping[str, str],
    dependencies: tuple[str, ...] = (),
) -> None:
    """Adds the messages and services of a package, each once in a process."""
    file = descriptor_pb2.FileDescriptorProto(name=name, package=package, syntax="proto3")
    file.dependency.extend(dependencies)
    for enum_name, rows in enums.items():
        enum = file.enum_type.add(name=enum_name)
        for value, number in _rows(rows):
            enum.value.add(name=value, number=int(number))
    for message_name, rows in messages.items():
        _add_message(file, message_name, rows)
    for service_name, rows in services.items():
        service = file.service.add(name=service_name)
        for rpc, *shapes in _rows(rows):
            request, response = shapes or (f"{rpc}Request", f"{rpc}Response")
            service.method.add(
                name=rpc,
                input_type=f".{package}.{request.lstrip('*')}",
                output_type=f".{package}.{response.lstrip('*')}",
                client_streaming=request.startswith("*"),
                server_streaming=response.startswith("*"),
            )
    _pool.AddSerializedFile(file.SerializeToString())


def _add_message(file: Any, name: str, rows: str) -> None:
    message = file.message_type.add(name=name)
    optional: list[Any] = []
    groups: dict[str, int] = {}
    for field_name, number, kind in _rows(rows):
        field = message.field.add(name=field_name, number=int(number), label=_Field.LABEL_OPTIONAL)
        if kind == "map":
            _add_map(file.package, message, field)
            continue
        if kind.startswith("*"):
            field.label = _Field.LABEL_REPEATED
        elif kind.startswith("?"):
            field.proto3_optional = True
            optional.append(field)
        kind, _, group = kind.lstrip("*?").partition("/")
        if group:
            if group not in groups:
                groups[group] = len(message.oneof_decl)
                message.oneof_decl.add(name=group)
            field.oneof_index = groups[group]
        _set_kind(file, field, kind)
    for field in optional:  # these groups must come after the declared ones
        field.oneof_index = len(message.oneof_decl)
        message.oneof_decl.add(name=f"_{field.name}")


def _set_kind(file: Any, field: Any, kind: str) -> None:
    if kind in _SCALARS:
        field.type = _SCALARS[kind]
    elif any(enum.name == kind for enum in file.enum_type):
        field.type, field.type_name = _Field.TYPE_ENUM, f".{file.package}.{kind}"
    else:
        full = {"TIME": _TIME, "SPAN": _SPAN}.get(kind, f"{file.package}.{kind}")
        field.type, field.type_name = _Field.TYPE_MESSAGE, f".{full}"


def _add_map(package: str, message: Any, field: Any) -> None:
    """Makes the field a map of text to text: a repeated message of key and value."""
    entry_name = "".join(part.capitalize() for part in field.name.split("_")) + "Entry"
    entry = message.nested_type.add(name=entry_name)
    entry.options.map_entry = True
    for number, name in enumerate(("key", "value"), start=1):
        entry.field.add(name=name, number=number, label=_Field.LABEL_OPTIONAL, type=_Field.TYPE_STRING)
    field.label, field.type = _Field.LABEL_REPEATED, _Field.TYPE_MESSAGE
    field.type_name = f".{package}.{message.name}.{entry_name}"


for _known in (timestamp_pb2, duration_pb2):
    _pool.AddSerializedFile(_known.DESCRIPTOR.serialized_pb)
add_file(
    "apache/rocketmq/v2/service.proto",
    PACKAGE,
    _MESSAGES,
    enums=_ENUMS,
    services={"MessagingService": _SERVICE},
    dependencies=(timestamp_pb2.DESCRIPTOR.name, duration_pb2.DESCRIPTOR.name),
)


def message_class(name: str, package: str = PACKAGE) -> Any:
    """Returns the class of a message, by its name without the package."""
    return message_factory.GetMessageClass(_pool.FindMessageTypeByName(f"{package}.{name}"))


def enum_number(kind: str, name: str) -> int:
    """Returns the number of an enum's value."""
    return int(_pool.FindEnumTypeByName(f"{PACKAGE}.{kind}").values_by_name[name].number)


def find_file(*, symbol: str = "", name: str = "") -> list[bytes]:
    """Returns the serialized descriptor of the file with this name, or that defines this full name, and those
    of the files that it needs. Raises KeyError.
    """
    file = _pool.FindFileContainingSymbol(symbol) if symbol else _pool.FindFileByName(name)
    return [bytes(one.serialized_pb) for one in (file, *file.dependencies)]
