"""Generates the compatibility page from the catalogue: `python -m compatibility`.

Source: spec decisions 5, 6 and 8; the notes beside each difference name its place in the code.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from tandemmq.protocol.catalogue import (
    CATALOGUE,
    ELECTED,
    NOT_OURS,
    RELAYED,
    RequestRow,
    ServingRole,
)
from tandemmq.protocol.codes import RequestCode as Code
from tandemmq.protocol.header_codec import Header

_PROPERTIES: Final = "properties text"
BODIES: Final[dict[int, tuple[str, str]]] = {
    Code.SEND_MESSAGE: ("message body", ""),
    Code.SEND_MESSAGE_V2: ("message body", ""),
    Code.SEND_BATCH_MESSAGE: ("batch of messages", ""),
    Code.SEND_REPLY_MESSAGE: ("message body", ""),
    Code.SEND_REPLY_MESSAGE_V2: ("message body", ""),
    Code.PULL_MESSAGE: ("", "stored messages"),
    Code.LITE_PULL_MESSAGE: ("", "stored messages"),
    Code.QUERY_MESSAGE: ("", "stored messages"),
    Code.VIEW_MESSAGE_BY_ID: ("", "stored message"),
    Code.POP_MESSAGE: ("", "stored messages"),
    Code.PEEK_MESSAGE: ("", "stored messages"),
    Code.BATCH_ACK_MESSAGE: ("BatchAckMessageRequestBody", ""),
    Code.QUERY_ASSIGNMENT: ("QueryAssignmentRequestBody", "QueryAssignmentResponseBody"),
    Code.SET_MESSAGE_REQUEST_MODE: ("SetMessageRequestModeRequestBody", ""),
    Code.HEART_BEAT: ("HeartbeatData", ""),
    Code.GET_CONSUMER_LIST_BY_GROUP: ("", "GetConsumerListByGroupResponseBody"),
    Code.CHECK_CLIENT_CONFIG: ("CheckClientRequestBody", ""),
    Code.LOCK_BATCH_MQ: ("LockBatchRequestBody", "LockBatchResponseBody"),
    Code.UNLOCK_BATCH_MQ: ("UnlockBatchRequestBody", ""),
    Code.GET_ALL_TOPIC_CONFIG: ("", "TopicConfigSerializeWrapper"),
    Code.GET_ALL_CONSUMER_OFFSET: ("", "ConsumerOffsetSerializeWrapper"),
    Code.GET_ALL_DELAY_OFFSET: ("", "DelayOffsetSerializeWrapper"),
    Code.GET_TIMER_CHECK_POINT: ("", "seven 64-bit numbers"),
    Code.GET_TIMER_METRICS: ("", "TimerMetricsSerializeWrapper"),
    Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: ("", "SubscriptionGroupWrapper"),
    Code.GET_ALL_MESSAGE_REQUEST_MODE: ("", "MessageRequestModeSerializeWrapper"),
    Code.GET_BROKER_HA_STATUS: ("", "HARuntimeInfo"),
    Code.UPDATE_AND_CREATE_TOPIC_LIST: ("CreateTopicListRequestBody", ""),
    Code.GET_TOPIC_CONFIG: ("", "TopicConfig"),
    Code.GET_TOPIC_STATS_INFO: ("", "TopicStatsTable"),
    Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: ("SubscriptionGroupConfig", ""),
    Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: ("SubscriptionGroupList", ""),
    Code.GET_SUBSCRIPTIONGROUP_CONFIG: ("", "SubscriptionGroupConfig"),
    Code.GET_CONSUME_STATS: ("", "ConsumeStats"),
    Code.GET_BROKER_CONSUME_STATS: ("", "ConsumeStatsList"),
    Code.GET_CONSUMER_CONNECTION_LIST: ("", "ConsumerConnection"),
    Code.GET_PRODUCER_CONNECTION_LIST: ("", "ProducerConnection"),
    Code.GET_ALL_PRODUCER_INFO: ("", "ProducerTableInfo"),
    Code.QUERY_TOPIC_CONSUME_BY_WHO: ("", "GroupList"),
    Code.QUERY_TOPICS_BY_CONSUMER: ("", "TopicList"),
    Code.QUERY_SUBSCRIPTION_BY_CONSUMER: ("", "QuerySubscriptionResponseBody"),
    Code.QUERY_CONSUME_TIME_SPAN: ("", "QueryConsumeTimeSpanBody"),
    Code.QUERY_CORRECTION_OFFSET: ("", "QueryCorrectionOffsetBody"),
    Code.INVOKE_BROKER_TO_RESET_OFFSET: ("", "ResetOffsetBody"),
    Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: ("", "GetConsumerStatusBody"),
    Code.GET_BROKER_RUNTIME_INFO: ("", "KVTable"),
    Code.GET_BROKER_CONFIG: ("", _PROPERTIES),
    Code.UPDATE_BROKER_CONFIG: (_PROPERTIES, ""),
    Code.VIEW_BROKER_STATS_DATA: ("", "BrokerStatsData"),
    Code.UPDATE_COLD_DATA_FLOW_CTR_CONFIG: (_PROPERTIES, ""),
    Code.REMOVE_COLD_DATA_FLOW_CTR_CONFIG: ("name of the group", ""),
    Code.GET_COLD_DATA_FLOW_CTR_INFO: ("", "JSON"),
    Code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: ("", "TopicList"),
    Code.QUERY_CONSUME_QUEUE: ("", "QueryConsumeQueueResponseBody"),
    Code.UPDATE_AND_GET_GROUP_FORBIDDEN: ("", "GroupForbidden"),
    Code.GET_BROKER_CLUSTER_ACL_CONFIG: ("", "AclConfig"),
    Code.AUTH_CREATE_USER: ("UserInfo", ""),
    Code.AUTH_UPDATE_USER: ("UserInfo", ""),
    Code.AUTH_GET_USER: ("", "UserInfo"),
    Code.AUTH_LIST_USER: ("", "list of UserInfo"),
    Code.AUTH_CREATE_ACL: ("AclInfo", ""),
    Code.AUTH_UPDATE_ACL: ("AclInfo", ""),
    Code.AUTH_GET_ACL: ("", "AclInfo"),
    Code.AUTH_LIST_ACL: ("", "list of AclInfo"),
    Code.GET_ROUTEINFO_BY_TOPIC: ("", "TopicRouteData"),
    Code.GET_BROKER_CLUSTER_INFO: ("", "ClusterInfo"),
    Code.REGISTER_BROKER: ("RegisterBrokerBody", "KVTable"),
    Code.QUERY_DATA_VERSION: ("DataVersion", "DataVersion"),
    Code.REGISTER_TOPIC_IN_NAMESRV: ("TopicRouteData", ""),
    Code.GET_BROKER_MEMBER_GROUP: ("", "GetBrokerMemberGroupResponseBody"),
    Code.GET_KVLIST_BY_NAMESPACE: ("", "KVTable"),
    Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: ("", "TopicList"),
    Code.GET_TOPICS_BY_CLUSTER: ("", "TopicList"),
    Code.GET_SYSTEM_TOPIC_LIST_FROM_NS: ("", "TopicList"),
    Code.GET_UNIT_TOPIC_LIST: ("", "TopicList"),
    Code.GET_HAS_UNIT_SUB_TOPIC_LIST: ("", "TopicList"),
    Code.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: ("", "TopicList"),
    Code.UPDATE_NAMESRV_CONFIG: (_PROPERTIES, ""),
    Code.GET_NAMESRV_CONFIG: ("", _PROPERTIES),
    Code.CHECK_TRANSACTION_STATE: ("stored message", ""),
    Code.RESET_CONSUMER_CLIENT_OFFSET: ("ResetOffsetBody", ""),
    Code.GET_CONSUMER_STATUS_FROM_CLIENT: ("", "GetConsumerStatusBody"),
    Code.PUSH_REPLY_MESSAGE_TO_CLIENT: ("message body", ""),
    Code.GET_CONSUMER_RUNNING_INFO: ("", "ConsumerRunningInfo"),
    Code.CONSUME_MESSAGE_DIRECTLY: ("stored message", "ConsumeMessageDirectlyResult"),
}
"""The request and answer bodies by code, under RocketMQ's names; empty if there is none."""

NOT_SERVED: Final = (
    ("static topics", "the queues of a topic belong to the brokers that have them"),
    ("class filters", "brokers run no code of clients; SQL92 filters are served"),
    (
        "batch queues (BatchCQ, inner batches)",
        "a batch is stored as its messages; their queues have a format of their own",
    ),
    (
        "light message queues (LMQ), lite topics",
        "a topic with many queues, or many topics, take their place; the attributes of a LITE topic"
        " and of its groups are kept and shown, and its messages are read from its queues",
    ),
    ("broker container", "each broker is a process of its own"),
    ("DLedger log", "a log is copied from master to slaves"),
    ("RocksDB queues and tables", "the default store format of RocketMQ is served"),
)

DIFFERENCES: Final = {
    "Name server": (
        (
            "UPDATE_NAMESRV_CONFIG never changes paths (CVE-2023-37582), nor where the server"
            " listens. What it changes is written into the lines of configStorePath, other lines"
            " stay, and is read again at the next start, where neither `-c` nor `--set` say otherwise.",
            "remoting/settings.py",
        ),
        (
            "Registration: a first registration that is refused leaves no empty broker behind; a"
            " closed connection takes all brokers off that registered over it.",
            "nameserver/route_table.py",
        ),
        (
            "Routes for clients before 4.9.4 leave enableActingMaster out while it is false, and"
            " have no blanks. GET_BROKER_CLUSTER_INFO, too, has the dialect that the client's version"
            " reads, and a route of one zone that of its asker. RocketMQ writes both in the old"
            " dialect.",
            "nameserver/nameserver.py",
        ),
        (
            "It serves at most 16,384 brokers, 300,000 topics and 8 MiB of KV configuration; what"
            " would be more is refused and nothing of it is taken in. RocketMQ takes what memory"
            " holds.",
            "nameserver/route_table.py",
        ),
        (
            "A broker that registers with a compressed body is understood although its header says"
            " that the body is not: brokers of RocketMQ 5 send so.",
            "protocol/bodies/register.py",
        ),
    ),
    "Sends and transactions": (
        (
            "A send to a topic without write permission is refused (16).",
            "broker/send/targets.py",
        ),
        (
            "A message that a consumer hands back is answered when its copy is as safe as the"
            " original; RocketMQ answers at once.",
            "broker/send/send_back.py",
        ),
        (
            "A message is handed back by its id: when the record at its place is another one, the"
            " request is refused, and clients send the message to the retry topic themselves."
            " RocketMQ hands back what lies there.",
            "broker/send/send_back.py",
        ),
        (
            "The end of a transaction counts as done once it is stored; a commit and the mark of its"
            " half message are one append. RocketMQ appends one after the other, and may deliver"
            " twice when it is killed in between.",
            "broker/transaction/handlers.py",
        ),
        (
            "A sender cancels a timed message (TIMER_DEL_UNIQKEY) of the topic that it sends to only,"
            " and only with recallMessageEnable=true. RocketMQ obeys the property for every topic.",
            "broker/delay/timers.py",
        ),
        (
            "Without access control one address makes at most 1,000 topics and groups by use, and as"
            " many in each hour from then on (autoCreatePerAddressMax); a further one is refused with"
            " NO_PERMISSION (16). RocketMQ has no bound.",
            "broker/topics/quota.py",
        ),
        (
            "Timers: timerPrecisionMs is fixed at 1 s. timerlog and timerwheel are not written:"
            " RocketMQ reads the timer topic anew when it takes a store of ours.",
            "broker/delay/timers.py",
        ),
    ),
    "Consumers": (
        (
            "A consumer that claims an offset behind what its broker knows to be of this log, after a"
            " start that may have lost the log's end, is answered PULL_OFFSET_MOVED with the offset"
            " to continue at. RocketMQ trusts the offset until the offset is behind the end of the queue, and"
            " sends it to the present end then, which skips what came between.",
            "broker/offsets/claims.py",
        ),
        (
            "Offsets and open pops of a topic that was deleted are not those of a topic made again"
            " under its name: groups begin at its begin, also on slaves. RocketMQ keeps the old"
            " offsets.",
            "broker/offsets/offset_table.py",
        ),
        (
            "GET_MAX_OFFSET, GET_MIN_OFFSET and SEARCH_OFFSET_BY_TIMESTAMP of an unknown topic or"
            " queue are refused (17, 29); RocketMQ answers 0, which reads as an empty queue."
            " QUERY_CONSUMER_OFFSET of a new group is 0 on a queue that never had a message, so that"
            " none is missed that comes meanwhile; RocketMQ says not found.",
            "broker/offsets/handlers.py",
        ),
        (
            "A lock of an orderly consumer whose connection is closed is free 35 s after its last"
            " renewal, as soon as no client trusts it any more; RocketMQ waits 60 s.",
            "broker/clients/queue_locks.py",
        ),
        (
            "Messages popped more than retryMaxTimes go to the dead letters of the group; RocketMQ's"
            " clients drop them after four hours.",
            "broker/pop/service.py",
        ),
        (
            "Pops: the records of leases are in the revive topic from the first moment, and a lease"
            " that ends brings its messages back within a second; RocketMQ takes 2 to 4. Pops and"
            " acknowledgements at a slave are refused (SYSTEM_BUSY, 2); a slave of RocketMQ finds no"
            " message. At most 200,000 leases are open (popCkMaxBufferSize); then pops find nothing."
            " popConsumerKVServiceEnable has no effect.",
            "broker/pop/handlers.py",
        ),
        (
            "A group that pops a topic begins in all its queues at once; a queue that the topic gets later"
            " is popped from its first message. RocketMQ begins there at the last message if the first one"
            " is not in memory any more.",
            "broker/pop/reading.py",
        ),
        (
            "Priority messages (5.4): a retry keeps the level of its message, without useSeparateRetryQueue,"
            " and is popped before the new messages of that level. In RocketMQ all retries have one level,"
            " and pops by priority find them only when no new message is left.",
            "broker/pop/reading.py",
        ),
        (
            "CHANGE_MESSAGE_INVISIBLETIME with a handle that is void is answered NO_MESSAGE (208);"
            " RocketMQ answers SUCCESS and makes a second lease.",
            "broker/pop/ack_handlers.py",
        ),
        (
            "While its master is away, a slave holds the pulls of consumers that have caught up."
            " RocketMQ's answers PULL_RETRY_IMMEDIATELY, and idle consumers ask in a loop.",
            "broker/pull/handlers.py",
        ),
    ),
    "Administration": (
        (
            "UPDATE_BROKER_CONFIG changes only settings that are safe and take effect at once; a"
            " setting that names a path, a file, an address, an identity or a script is refused (16)"
            " with the reason, and so is an unknown one. RocketMQ sets any key that is not in a black"
            " list, which was CVE-2023-33246.",
            "broker/admin/settings.py",
        ),
        (
            "CLEAN_EXPIRED_CONSUMEQUEUE deletes files only: a queue whose messages have all expired"
            " keeps its numbering, so that offsets of groups stay right.",
            "broker/admin/settings.py",
        ),
        (
            "CLONE_GROUP_OFFSET without a topic copies the offsets of all topics; RocketMQ copies none.",
            "broker/offsets/handlers.py",
        ),
        (
            "QUERY_MESSAGE with indexType T reads the queues, which hold the hash of each message's"
            " tags, and so finds messages of any release; the index has no entries of tags, which"
            " RocketMQ 5.4 and later add for each message. The newest 4,000,000 entries of the time"
            " that was asked for are read. lastKey has no effect, as with RocketMQ's file index.",
            "broker/query.py",
        ),
        (
            "GET_BROKER_CONSUME_STATS leaves out the broker's own groups.",
            "broker/admin/inspection_handlers.py",
        ),
        (
            "GET_CONSUME_STATS with a topic has no queues when the group is online to broadcast and"
            " has no offset there: RocketMQ shows a lag from offset 0.",
            "broker/admin/inspection_handlers.py",
        ),
        (
            "VIEW_BROKER_STATS_DATA knows what tools ask for and what goes with it: TOPIC_PUT_,"
            " QUEUE_PUT_ and GROUP_GET_ with NUMS and SIZE, SNDBCK_PUT_NUMS, GROUP_CK_NUMS,"
            " GROUP_ACK_NUMS, BROKER_ with PUT_NUMS, GET_NUMS (and both _WITHOUT_SYSTEM_TOPIC),"
            " CK_NUMS and ACK_NUMS; no QUEUE_GET_, no latencies. Messages are counted when they come"
            " into their topic, sizes of a queue with more than 64 new messages in 10 s are estimated"
            " from the newest.",
            "broker/stats.py",
        ),
        (
            "Cold reads (coldDataFlowControlEnable): a record is cold by its distance from the end"
            " of the log, RocketMQ asks mincore; a group that is not online is held and not refused;"
            " thresholds are not adapted (coldCtrStrategyEnable has no effect)."
            " SET_COMMITLOG_READ_MODE is kept as dataReadAheadEnable, over a restart when there is a"
            " configuration file.",
            "broker/pull/cold_reads.py",
        ),
        (
            "GET_CONSUMER_CONNECTION_LIST reports the rejected members of the group in a field"
            " that RocketMQ's tools ignore, and in the remark when no member is online; without a group,"
            " the newest 256 kinds of rejections of all groups.",
            "broker/admin/inspection_handlers.py",
        ),
        (
            "Topics and groups are at most 100,000 each. A list of them that does not fit is refused"
            " (SYSTEM_BUSY, 2) and makes none; RocketMQ knows no bound.",
            "broker/topics/topic_table.py",
        ),
    ),
    "Access control": (
        (
            "Access control: where an allowing and a denying entry fit equally well, the denial"
            " decides; RocketMQ lets the one decide that it sorts first.",
            "broker/access/auth_table.py",
        ),
        (
            "AUTH_GET_USER and AUTH_LIST_USER show passwords to super users, and each user his own;"
            " to others, and while authenticationEnabled is off, none. RocketMQ shows all to"
            " every user with the right to ask.",
            "broker/access/service.py",
        ),
        (
            "A request that names a message by its place in the log (by id, the end of a"
            " transaction, a message handed back) is judged by the topic of what is stored there."
            " RocketMQ asks for the topic that the request claims.",
            "broker/access/needs.py",
        ),
        (
            "authorizationEnabled without authenticationEnabled is refused at the start, and so are"
            " changes of users while authenticationEnabled is off. Users are in config/auth.json;"
            " RocketMQ keeps them in RocksDB, and migrateAuthFromV1Enabled has no effect here.",
            "broker/access/auth_table.py",
        ),
        (
            "Controllers with controllerSharedSecret or innerClientAuthenticationCredentials serve"
            " requests that change something, and heartbeats, only signed; RocketMQ's serve"
            " every client. A group whose master lives is cleaned (CLEAN_BROKER_DATA) only by a flag of"
            " our tool.",
            "controller/guard.py",
        ),
        (
            "Our clients, brokers and tools add a field (`!tm`) to what they sign, by which the"
            " signature covers code, names and borders of the fields; weakSignatureEnable=false"
            " refuses RocketMQ's form, which covers none of them.",
            "protocol/signature.py",
        ),
        (
            "Unfinished frames of all connections share one bound (frameBytesHeldMax); the"
            " connection that wants more is closed. Under access control peers that have not signed"
            " yet share a quarter of it, and a tenth of the loop's time.",
            "remoting/shared_bounds.py",
        ),
        (
            "A header has at most 256 KiB, RocketMQ's the whole frame of 16 MiB. Text in FastJSON's"
            " dialect is read up to 1,024 keys, values and escapes in a header, 16,384 in the body of"
            " a request; strict JSON, also with integer keys, is bounded by the frame only.",
            "protocol/loose_json.py",
        ),
    ),
    "Stores and start": (
        (
            "A damaged record ends nothing: recovery reads around it, queues get fillers, sends are"
            " refused until the range is healed from another copy or given up. RocketMQ ends the log"
            " there and deletes what follows.",
            "store/damage.py",
        ),
        (
            "A queue offset that falls in the log's order begins the queue anew, so that a topic"
            " made again after its deletion begins at 0 on every copy.",
            "store/deletions.py",
        ),
        (
            "A SYNC_MASTER with ASYNC_FLUSH whose machine went down refuses messages"
            " (SERVICE_NOT_AVAILABLE, 14) and is not registered until it has fetched what its slaves"
            " hold more. RocketMQ serves the shorter log.",
            "broker/replica/tail_check.py",
        ),
        (
            "A master does not start while another one of its name is registered and answers."
            " RocketMQ's overwrites the address.",
            "broker/broker.py",
        ),
    ),
    "Replication": (
        (
            "A slave does not act as master (enableSlaveActingMaster): it serves reads, no delayed"
            " messages, no transactions. A name server shows slaves of RocketMQ as acting masters"
            " (supportActingMaster).",
            "nameserver/route_table.py",
        ),
        (
            "EXCHANGE_BROKER_HA_INFO and NOTIFY_MIN_BROKER_ID_CHANGE make a slave ask its name"
            " servers where the master is; it never takes the addresses from the request."
            " RESET_MASTER_FLUSH_OFFSET has no effect: slaves compare their log with the master's.",
            "broker/admin/settings.py",
        ),
        (
            "With SYNC_FLUSH slaves are sent what is flushed; RocketMQ sends what is written. A send"
            " that waits for disk and slaves waits for the disk first: a late disk is answered"
            " FLUSH_DISK_TIMEOUT, and slaveTimeout counts from the flush on.",
            "store/confirm.py",
        ),
        (
            "Acknowledgements of slaves are counted by replica, not by connection; the confirmed"
            " offset never falls.",
            "store/confirm.py",
        ),
        (
            "A slave checks every record that it copies, and compares the end of its log with the"
            " master's when it connects.",
            "replication/core/verifier.py",
        ),
        (
            "A slave that is ahead of its master, or whose log ends in other bytes, halts and keeps"
            " its files. RocketMQ's stays connected and continues from its own end.",
            "replication/core/slave.py",
        ),
        (
            "A slave takes topics, groups and progress only while it copies the log, and of progress"
            " no more than its own queues reach. RocketMQ's takes them whenever it reaches the master.",
            "broker/replica/config_sync.py",
        ),
        (
            "A slave of ours is notified of deletions of topics and groups; one of RocketMQ is not, and"
            " one of ours at a master of RocketMQ keeps what was deleted.",
            "broker/replica/table_watch.py",
        ),
        (
            "haFlowControlEnable counts every byte that is sent to a slave, not the headers alone.",
            "replication/core/master.py",
        ),
        (
            "SYNC_MASTER with inSyncReplicas=1 waits for no slave, as in 5.x, and says so at the"
            " start; syncMasterCompat4=true waits for one, as in 4.x.",
            "store/replies.py",
        ),
        (
            "`cleanFileForciblyEnable` is false unless it is set: a disk that fills up costs sends, which are"
            " refused above `diskSpaceWarningLevelRatio`, and no messages younger than `fileReservedTime`.",
            "store/retention.py",
        ),
    ),
}
"""The deliberate differences, with their places in the code, by area."""

CLIENTS: Final = (
    (
        "Java",
        "`rocketmq-client`, `rocketmq-tools` 4.9.8",
        "producers, push, pull and lite pull consumers, transactions, access control, TLS",
        "java-4.9",
    ),
    (
        "Java",
        "`rocketmq-client`, `rocketmq-tools` 5.3.3 and 5.5.0",
        "the same, pops, timed messages, recalls with traces",
        "java-5.3, java-5.x",
    ),
    ("Java", "mqadmin of `rocketmq-tools` 5.5.0", "its commands and what they print", "mqadmin"),
    (
        "Java",
        "name servers and brokers 4.9.7, 5.5.0, brokers 5.3.3, controllers 5.5.0",
        "as slaves and masters of ours, under our controllers and over our brokers, "
        "and on each other's store directories",
        "java-4.9, java-5.3, java-5.x",
    ),
    (
        "Java",
        "`rocketmq-proxy` 5.5.0 in cluster mode, `rocketmq-client-java` 5.0.8",
        "simple and push consumers, order, a reset while messages are held, timed messages, transactions",
        "java-grpc",
    ),
    (
        "C++",
        "`librocketmq.so` 1.2, of the Python package `rocketmq` 0.4.4",
        "synchronous, ordered, one-way sends; push, orderly and pull consumers",
        "c++",
    ),
    (
        "Go",
        "`rocketmq-client-go/v2` 2.1.2",
        "all ways to send; push, orderly and pull consumers; topics made and deleted",
        "go",
    ),
    ("Rust", "`rocketmq-client-rust` 0.6.0", "a producer and a push consumer", "rust"),
    (
        "Node",
        "`rocketmq-client-nodejs` 1.0.8, by RocketMQ's proxy",
        "a producer and a simple consumer",
        "node",
    ),
    (
        "Python",
        "`rocketmq-python-client` 5.1.2, by RocketMQ's proxy",
        "a producer, a simple and a push consumer",
        "python",
    ),
    (
        "Python",
        "`pyrocketmq` of the remoting protocol, which no package index has",
        "its question for a route, as bytes, and how it reads the answer",
        "python",
    ),
)
"""The programs that run against us: language, program, what is checked, and by which tests."""

GRPC_CLIENTS: Final = (
    (
        "Python, Node, Go, Java",
        "`rocketmq-python-client` 5.1.2, `rocketmq-client-nodejs` 1.0.8, `rocketmq-clients/golang/v5` 5.1.4,"
        " `rocketmq-client-java` 5.2.0",
        "all kinds of messages, simple and push consumers, order under failures, retries up to the dead"
        " letter, invisible time, recall, filters, access control, TLS and plaintext",
    ),
    (
        "Rust",
        "crate `rocketmq` 5.0.0",
        "all kinds of messages but priority, batches, simple consumers, filters, access control; the crate"
        " has nothing else",
    ),
)
"""The gRPC clients that run through our proxy: language, artifact and version, what is checked."""

_SECTIONS: Final = (
    ((10, 310, 320, 36), "spec remoting 9.2, 9.6"),
    ((11, 361), "spec remoting 9.3"),
    ((12, 33), "spec remoting 9.9"),
    ((324, 325, 326), "spec remoting 9.10"),
    ((37, 39, 323), "spec remoting 9.7"),
    ((34, 35, 38, 40, 46), "spec remoting 9.4"),
    ((14, 15, 29, 30, 31, 32), "spec remoting 9.5"),
    ((41, 42), "spec remoting 9.8"),
    ((370,), "spec semantics 18.2"),
    ((400, 401), "spec semantics 20.1"),
    ((2001, 2002, 2003, 2004), "spec semantics 20.3"),
    (tuple(range(200_050, 200_152)), "spec semantics 14"),
    ((21, 43, 45, 60, 61, 201, 402, 906, 907, 908), "spec remoting 8.5"),
    ((*range(50, 55), *range(3001, 3011)), "spec semantics 21"),
    ((220, 221, 307, 309), "spec remoting 9.11"),
    ((103, 104, 217, 322, 901, 904), "spec nameserver 3 to 6"),
    ((105, 106, 206, 216, 224, 304, 311, 312, 313), "spec nameserver 6"),
    ((205, 327), "spec nameserver 7"),
    ((100, 101, 102, 219), "spec nameserver 8"),
    ((905,), "spec nameserver 9"),
    ((318, 319), "spec nameserver 10"),
    ((*range(1001, 1014), 30_001, 30_002), "spec controller 2"),
)
SECTION_OF: Final = {code: section for codes, section in _SECTIONS for code in codes}
"""The section of the specification for each code; all other codes are in spec remoting 8.6."""

_AREAS: Final = (
    (ServingRole.BROKER, "Brokers"),
    (ServingRole.NAME_SERVER, "Name servers"),
    (ServingRole.CONTROLLER, "Controllers"),
    (ServingRole.CLIENT, "Clients"),
)


def render() -> str:
    """Returns the page in Markdown."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield "# Compatibility"
    yield ""
    yield ("Made by `python -m compatibility > docs/compatibility.md`; a test keeps it up to date.")
    yield ""
    yield (
        "TandemMQ serves the remoting protocol of RocketMQ 4.9 and 5.x. Its clients, brokers and"
        " `mqadmin` work"
        " unchanged; `make interop` runs them. A field with `!` is required. Any code that is not listed"
        " here is"
        " answered REQUEST_CODE_NOT_SUPPORTED (3)."
    )
    for role, title in _AREAS:
        yield from _table(title, [entry for entry in CATALOGUE.values() if entry.served_by is role])
    yield from _not_served()
    yield ""
    yield "## Clients that are checked"
    yield ""
    yield (
        "`make interop` runs them ([how](interop.md)); the last column is their row in its table. Those in"
        " other languages than Java run where their tools are installed."
    )
    yield ""
    yield "| language | artifact and version | what is run | row |"
    yield "|---|---|---|---|"
    for row in CLIENTS:
        yield f"| {' | '.join(row)} |"
    yield ""
    yield (
        "`make grpc` runs the official clients of the gRPC protocol through our proxy, before our broker and"
        " RocketMQ's ([how](interop.md#the-official-grpc-clients)):"
    )
    yield ""
    yield "| language | artifact and version | what is run |"
    yield "|---|---|---|"
    for client in GRPC_CLIENTS:
        yield f"| {' | '.join(client)} |"
    yield ""
    yield "## Deliberate differences"
    yield ""
    yield (
        "What a client or tool can see and what differs from RocketMQ 5.5.0 and earlier; the file is below"
        " `src/tandemmq`."
    )
    for area, differences in DIFFERENCES.items():
        yield ""
        yield f"### {area}"
        yield ""
        for text, place in differences:
            yield f"- {text} (`{place}`)"


def _table(title: str, entries: Iterable[RequestRow]) -> Iterator[str]:
    yield ""
    yield f"## Served by: {title.lower()}"
    yield ""
    yield "| code | name | request fields | request body | answer fields | answer body | notes | source |"
    yield "|---|---|---|---|---|---|---|---|"
    for entry in sorted(entries, key=lambda entry: entry.code):
        asked, answered = BODIES.get(entry.code, ("", ""))
        cells = (
            str(int(entry.code)),
            entry.name,
            _fields(entry.request),
            asked,
            _fields(entry.response),
            answered,
            _notes(entry),
            "" if entry.name.startswith("TANDEM_") else SECTION_OF.get(int(entry.code), "spec remoting 8.6"),
        )
        yield f"| {' | '.join(cells)} |"


def _notes(entry: RequestRow) -> str:
    notes = []
    if entry.is_oneway:
        notes.append("oneway")
    if entry.code in RELAYED:
        notes.append("tools ask the broker, which passes it on")
    if entry.code in ELECTED:
        notes.append("in controller mode only")
    if entry.name.startswith("TANDEM_"):
        notes.append("only between two of ours")
    return ", ".join(notes)


def _fields(header: type[Header] | None) -> str:
    """Returns the wire names; required ones with an exclamation mark."""
    if header is None:
        return ""
    infos = msgspec.structs.fields(header)
    return ", ".join(f"{info.encode_name}!" if info.required else info.encode_name for info in infos)


def _not_served() -> Iterator[str]:
    yield ""
    yield "## Not served"
    yield ""
    yield "| what | why |"
    yield "|---|---|"
    for what, why in NOT_SERVED:
        yield f"| {what} | {why} |"
    yield ""
    yield "| code | name | reason |"
    yield "|---|---|---|"
    for code, (name, why) in sorted(NOT_OURS.items()):
        yield f"| {code} | {name} | {why} |"


if __name__ == "__main__":
    sys.stdout.write(render())
