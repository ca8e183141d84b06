"""Writes docs/settings.md: every setting of brokers, name servers, controllers and proxies.

    .venv/bin/python -m settings_page > docs/settings.md

Keys, allowed values and defaults come from `tandemmq.config.names` and the option classes, the effects from
this module. A test requires the page to be up to date, so a key without an effect fails.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, Field, fields
from enum import Enum
from pathlib import Path
from typing import Any, Final

from tandemmq.broker.options import AccessOptions, BrokerOptions, ElectionOptions, InnerProxyOptions
from tandemmq.config.names import (
    ALIASES,
    BROKER_KEYS,
    CONTROLLER_KEYS,
    NAMESERVER_KEYS,
    PROXY_KEYS,
    REFUSED,
    TLS_KEYS,
    Key,
)
from tandemmq.controller.options import ControllerOptions
from tandemmq.nameserver.options import NameServerOptions
from tandemmq.protocol.setting_kinds import option_keys
from tandemmq.proxy.options import ProxyOptions
from tandemmq.remoting.options import TlsOptions
from tandemmq.replication.core.options import ReplicationOptions
from tandemmq.store.options import StoreOptions
from tandemmq.telemetry.export_options import ExportOptions

EXPORT_KEYS: Final = option_keys(ExportOptions)
PARTS: Final[dict[str, Any]] = {
    "broker": BrokerOptions,
    "store": StoreOptions,
    "replication": ReplicationOptions,
    "election": ElectionOptions,
    "access": AccessOptions,
    "tls": TlsOptions,
    "nameserver": NameServerOptions,
    "controller": ControllerOptions,
    "proxy": ProxyOptions,
    "inner_proxy": InnerProxyOptions,
}

CHAPTERS: Final[dict[str, tuple[str, ...]]] = {
    "Identity and addresses": (
        "brokerClusterName",
        "brokerName",
        "brokerId",
        "brokerRole",
        "brokerPermission",
        "bindAddress",
        "listenPort",
        "fastListen",
        "brokerIP1",
        "brokerIP2",
        "advertisedAddresses",
        "namesrvAddr",
        "registerNameServerPeriod",
        "registerBrokerTimeoutMills",
        "tracesExporterType",
        "tracesExporterTarget",
        "enableProxy",
        "grpcServerPort",
    ),
    "Metrics with RocketMQ's names": (
        "metricsOtelCardinalityLimit",
        "metricsPerQueue",
        "enableStatsMetrics",
        "enableRequestMetrics",
        "enableConnectionMetrics",
        "enableLagAndDlqMetrics",
        "enableTransactionMetrics",
        "enableMessageStoreMetrics",
        "enablePopMetrics",
        "enableRemotingMetrics",
    ),
    "Topics and groups": (
        "autoCreateTopicEnable",
        "autoCreatePerAddressMax",
        "defaultTopicQueueNums",
        "clusterTopicEnable",
        "brokerTopicEnable",
        "traceTopicEnable",
        "msgTraceTopicName",
        "validateSystemTopicWhenUpdateTopic",
        "enableMixedMessageType",
        "autoCreateSubscriptionGroup",
        "enableCreateSysGroup",
    ),
    "Sends, delays, transactions": (
        "regionId",
        "traceOn",
        "startAcceptSendRequestTimeStamp",
        "maxMessageSize",
        "messageDelayLevel",
        "timerWheelEnable",
        "timerMaxDelaySec",
        "recallMessageEnable",
        "storeReplyMessageEnable",
        "rejectTransactionMessage",
        "transactionTimeOut",
        "transactionCheckInterval",
        "transactionCheckMax",
    ),
    "Reads": (
        "enablePropertyFilter",
        "slaveReadEnable",
        "litePullMessageEnable",
        "coldDataFlowControlEnable",
        "cgColdReadThreshold",
        "globalColdReadThreshold",
        "rejectPullConsumerEnable",
        "longPollingEnable",
        "shortPollingTimeMills",
        "longPollCountMax",
        "accessMessageInMemoryMaxRatio",
        "maxTransferBytesOnMessageInMemory",
        "maxTransferCountOnMessageInMemory",
        "maxTransferBytesOnMessageInDisk",
        "maxTransferCountOnMessageInDisk",
        "maxFilterMessageSize",
        "offsetCheckInSlave",
        "maxMsgsNumBatch",
    ),
    "Pops and assignment": (
        "popPollingSize",
        "maxPopPollingSize",
        "popCkMaxBufferSize",
        "popFromRetryProbability",
        "popFromRetryProbabilityForPriority",
        "priorityOrderAsc",
        "useSeparateRetryQueue",
        "enableRetryTopicV2",
        "retrieveMessageFromPopRetryTopicV1",
        "popResponseReturnActualRetryTopic",
        "initPopOffsetByCheckMsgInMem",
        "reviveQueueNum",
        "serverLoadBalancerEnable",
        "defaultMessageRequestMode",
        "defaultPopShareQueueNum",
    ),
    "Offsets and clients": (
        "flushConsumerOffsetInterval",
        "consumerOffsetUpdateVersionStep",
        "flushDelayOffsetInterval",
        "delayOffsetUpdateVersionStep",
        "useServerSideResetOffset",
        "notifyConsumerIdsChangedEnable",
        "realTimeNotifyConsumerChange",
        "channelExpiredTimeout",
        "configBlackList",
    ),
    "Files": (
        "storePathRootDir",
        "storePathCommitLog",
        "mappedFileSizeCommitLog",
        "mappedFileSizeConsumeQueue",
        "messageIndexEnable",
        "maxHashSlotNum",
        "maxIndexNum",
        "warmMapedFileEnable",
        "flushLeastPagesWhenWarmMapedFile",
        "dataReadAheadEnable",
        "checkCRCOnRecover",
        "scrubBytesPerSecond",
        "scrubInterval",
        "openFileCountMax",
        "mappedBytesMax",
    ),
    "Flushing and the direct memory pool": (
        "flushDiskType",
        "syncFlushTimeout",
        "flushIntervalCommitLog",
        "flushCommitLogLeastPages",
        "flushCommitLogThoroughInterval",
        "flushIntervalConsumeQueue",
        "flushConsumeQueueLeastPages",
        "flushConsumeQueueThoroughInterval",
        "osPageCacheBusyTimeOutMills",
        "transientStorePoolEnable",
        "transientStorePoolSize",
        "fastFailIfNoBufferInStorePool",
        "commitIntervalCommitLog",
        "commitCommitLogLeastPages",
        "commitCommitLogThoroughInterval",
        "memoryBytes",
        "frameBytesHeldMax",
    ),
    "Retention": (
        "fileReservedTime",
        "deleteWhen",
        "cleanResourceInterval",
        "deleteFileBatchMax",
        "cleanFileForciblyEnable",
        "diskMaxUsedSpaceRatio",
        "diskSpaceCleanForciblyRatio",
        "diskSpaceWarningLevelRatio",
    ),
    "Replication": (
        "inSyncReplicas",
        "totalReplicas",
        "slaveTimeout",
        "syncMasterCompat4",
        "haListenPort",
        "haMasterAddress",
        "haMasterRemotingAddress",
        "refuseSecondMaster",
        "haMaxGapNotInSync",
        "haSendHeartbeatInterval",
        "haHousekeepingInterval",
        "haTransferBatchSize",
        "haFlowControlEnable",
        "maxHaTransferByteInSecond",
        "haFirstTransfer",
        "haAllowedSlaves",
        "haSharedSecret",
        "configSyncInterval",
        "divergentKeepBytes",
        "acceptLog",
    ),
    "Elected masters": (
        "enableControllerMode",
        "controllerAddr",
        "minInSyncReplicas",
        "allAckInSyncStateSet",
        "storePathBrokerIdentity",
        "storePathEpochFile",
        "brokerHeartbeatInterval",
        "sendHeartbeatTimeoutMillis",
        "controllerHeartBeatTimeoutMills",
        "syncBrokerMetadataPeriod",
        "brokerElectionPriority",
        "haMaxTimeSlaveNotCatchup",
        "joinSetTimeoutMillis",
        "handoverLingerMillis",
        "handoverAtStop",
        "handoverStopLingerMillis",
        "asyncLearner",
        "syncFromLastFile",
        "reapplyBrokerId",
        "controllerSharedSecret",
    ),
    "Access control": (
        "aclEnable",
        "aclConfigDir",
        "authenticationEnabled",
        "authorizationEnabled",
        "authenticationWhitelist",
        "authorizationWhitelist",
        "initAuthenticationUser",
        "innerClientAuthenticationCredentials",
        "weakSignatureEnable",
    ),
}

EFFECTS: Final[dict[str, str]] = {
    # Identity and addresses.
    "brokerClusterName": "Name of the cluster; `mqadmin -c` and routes use it",
    "brokerName": "Name of the broker group: a master and its slaves share it",
    "brokerId": "0 for a master, above 0 for a slave; ignored in controller mode",
    "brokerRole": (
        "ASYNC_MASTER, SYNC_MASTER (sends wait for `inSyncReplicas`) or SLAVE; ignored in controller mode"
    ),
    "brokerPermission": "What clients may do here: 4 read, 2 write, 6 both",
    "bindAddress": "Address on which the ports listen",
    "listenPort": (
        "Port for clients, tools and other brokers; the fast port is 2 below it, the replication port "
        "1 above it"
    ),
    "fastListen": (
        "Listen on the port 2 below `listenPort`, too, which RocketMQ's producers use for some requests"
    ),
    "brokerIP1": "Address advertised to clients; a host name is resolved once, at the start, for message ids",
    "advertisedAddresses": "Addresses of this broker in other networks of clients "
    "([how to](operations/networks.md)); changed while it runs, it is known to name servers at once",
    "brokerIP2": "Address of the replication port advertised to slaves; empty: `brokerIP1`",
    "namesrvAddr": "Name servers, separated by `;`",
    "registerNameServerPeriod": "Pause between two registrations at each name server, in ms",
    "registerBrokerTimeoutMills": "Time-out of one registration, in ms",
    "metricsExporterType": (
        "DISABLE; PROM: the port with `/metrics` and the pages of health; OTLP_GRPC, OTLP_HTTP (ours), LOG: "
        "the port, and a push to a collector or into the log (extra `otel`). RocketMQ's numbers work, too"
    ),
    "metricsLabel": "Labels of every series",
    "metricsGrpcExporterTarget": "Collector of OTLP_GRPC and OTLP_HTTP",
    "metricsGrpcExporterHeader": "Headers of each push, such as an API key",
    "metricGrpcExporterTimeOutInMills": "Time-out of a push, in ms",
    "metricGrpcExporterIntervalInMills": "Pause between two pushes, in ms",
    "metricLoggingExporterIntervalInMills": "Pause between two readings in the log, in ms",
    "metricsOtelCardinalityLimit": (
        "Series of each metric with RocketMQ's name, 8192 at most: of lag those with the most, of others "
        "the first"
    ),
    "metricsPerQueue": "Serve the lag of each queue, too",
    "enableStatsMetrics": "Serve counts of topics and groups, and `rocketmq_processor_watermark`",
    "enableRequestMetrics": "Serve messages and bytes in and out, sizes, and times to create topics",
    "enableConnectionMetrics": "Serve connections of producers and consumers",
    "enableLagAndDlqMetrics": "Serve the lag of groups and their dead letters",
    "enableTransactionMetrics": "Serve transactions",
    "enableMessageStoreMetrics": "Serve storage and timers",
    "enablePopMetrics": "Serve leases of pops",
    "enableRemotingMetrics": "Measure each request: `rocketmq_rpc_latency_milliseconds`",
    "metricsInDelta": "Counters and histograms are pushed as differences",
    "metricsPromExporterHost": "Address on which metrics are served; empty: `bindAddress`",
    "metricsPromExporterPort": "Port of `/metrics`, `/health/live` and `/health/ready`",
    "tracesExporterType": "[Spans](operations/opentelemetry.md) of sends whose trace is sampled",
    "tracesExporterTarget": "Collector of these spans; empty: `metricsGrpcExporterTarget`",
    # Topics and groups.
    "autoCreateTopicEnable": "A send to an unknown topic creates it",
    "autoCreatePerAddressMax": (
        "Topics and groups that one client address may create by using them, at once and then within "
        "an hour; 0: no bound"
    ),
    "defaultTopicQueueNums": "Queues of a topic that a send creates",
    "clusterTopicEnable": "Clients may use the topic that is named as the cluster",
    "brokerTopicEnable": "Clients may use the topic that is named as the broker",
    "traceTopicEnable": "The topic of message traces exists",
    "msgTraceTopicName": "Name of the topic of message traces",
    "validateSystemTopicWhenUpdateTopic": "Tools cannot change system topics",
    "enableMixedMessageType": "Topics may be created with the message type MIXED",
    "autoCreateSubscriptionGroup": "A consumer of an unknown group creates it",
    "enableCreateSysGroup": "A consumer of an unknown group of RocketMQ's tools creates it",
    # Sends, delays, transactions.
    "regionId": "Region in the answers to sends, which traces show",
    "traceOn": "Value of the property `TRACE_ON` in the answers to sends",
    "startAcceptSendRequestTimeStamp": "Sends before this time are refused, in ms since 1970",
    "maxMessageSize": "Longest body of a message, in bytes",
    "messageDelayLevel": "Delays of the levels 1, 2, ...",
    "timerWheelEnable": "Messages with a delivery time of their own are accepted",
    "timerMaxDelaySec": "Longest delay of such a message, in s",
    "recallMessageEnable": "Timed messages can be recalled before their time",
    "storeReplyMessageEnable": "Replies to request messages are stored when the requester cannot be reached",
    "rejectTransactionMessage": "Transactional messages are refused",
    "transactionTimeOut": "Age at which a half message is checked, in ms",
    "transactionCheckInterval": "Pause between two rounds of checks, in ms",
    "transactionCheckMax": "Checks of one half message before it is discarded",
    # Reads.
    "enablePropertyFilter": "Consumers may filter by SQL92 expressions",
    "slaveReadEnable": "A slave serves reads; lagging consumers are redirected to it",
    "litePullMessageEnable": "Pulls of lite consumers are served",
    "coldDataFlowControlEnable": "Slow down groups that read much from the disk",
    "cgColdReadThreshold": "With it: bytes from the disk that one group may read in 5 s",
    "globalColdReadThreshold": "With it: bytes from the disk that all groups together may read in 5 s",
    "rejectPullConsumerEnable": "Consumers that only pull are refused",
    "longPollingEnable": "A pull that finds nothing is held until a message comes",
    "shortPollingTimeMills": "Without it: how long such a pull waits, in ms",
    "longPollCountMax": "Held pulls; one more is answered at once",
    "accessMessageInMemoryMaxRatio": (
        "Part of the memory, in %, behind the end of the log that counts as being in memory"
    ),
    "maxTransferBytesOnMessageInMemory": "Bytes of one pull from memory",
    "maxTransferCountOnMessageInMemory": "Messages of one pull from memory",
    "maxTransferBytesOnMessageInDisk": "Bytes of one pull from further back",
    "maxTransferCountOnMessageInDisk": "Messages of one pull from further back",
    "maxFilterMessageSize": "Bytes of queue entries that one filtered pull scans",
    "offsetCheckInSlave": (
        "A slave answers pulls beyond its end as a master does, instead of redirecting them"
    ),
    "maxMsgsNumBatch": "Messages in the answer to one query by key",
    # Pops and assignment.
    "popPollingSize": "Held pops per topic and group; one more is answered at once",
    "maxPopPollingSize": "Held pops in all",
    "popCkMaxBufferSize": "Unacknowledged pops of a queue; more find nothing",
    "popFromRetryProbability": "Part of the pops, in %, that look at retries first",
    "popFromRetryProbabilityForPriority": (
        "The same, of pops by priority; the others look at the retries of each level before its messages"
    ),
    "priorityOrderAsc": "Pops read the queues from the highest number down; false: from the lowest up",
    "useSeparateRetryQueue": (
        "Retries of pops keep the queue number of their message, as those of PRIORITY topics always do"
    ),
    "enableRetryTopicV2": "Retries of pops are stored in a topic named as RocketMQ 5.2 does",
    "retrieveMessageFromPopRetryTopicV1": "With it: retries under the older name are read, too",
    "popResponseReturnActualRetryTopic": "Popped retries carry the name of their retry topic",
    "initPopOffsetByCheckMsgInMem": (
        "A new group that pops from the end begins with the first message of a queue that is in memory"
    ),
    "reviveQueueNum": "Queues of the topic that holds leases of pops",
    "serverLoadBalancerEnable": "The broker assigns queues to members that ask for it",
    "defaultMessageRequestMode": "PULL or POP for groups that set none",
    "defaultPopShareQueueNum": "Queues that members of a popping group share; -1: all",
    # Offsets and clients.
    "flushConsumerOffsetInterval": "Pause between two writes of consumer offsets, in ms",
    "consumerOffsetUpdateVersionStep": (
        "Commits after which the version of the offsets rises, for slaves of RocketMQ"
    ),
    "flushDelayOffsetInterval": "Pause between two writes of the delay offsets, in ms",
    "delayOffsetUpdateVersionStep": "Deliveries after which their version rises",
    "useServerSideResetOffset": "A reset of offsets takes effect at the broker, whatever clients do",
    "notifyConsumerIdsChangedEnable": "Consumers are notified when members come and go",
    "realTimeNotifyConsumerChange": "They are notified at once, not with the next heartbeat",
    "channelExpiredTimeout": "A client without a heartbeat for this long is gone, in ms",
    "configBlackList": "Settings that tools cannot change at run time",
    # Files.
    "storePathRootDir": "The store directory",
    "storePathCommitLog": "Directory of the CommitLog; empty: `commitlog` in the store directory",
    "mappedFileSizeCommitLog": "Size of a CommitLog file, in bytes",
    "mappedFileSizeConsumeQueue": "Size of a ConsumeQueue file, in bytes; rounded to whole entries of 20",
    "messageIndexEnable": "Index messages by key",
    "maxHashSlotNum": "Slots of an index file",
    "maxIndexNum": "Entries of an index file",
    "warmMapedFileEnable": "Write new CommitLog files with zeros before they are used",
    "flushLeastPagesWhenWarmMapedFile": "With it: pages after which they are flushed",
    "dataReadAheadEnable": "Let the kernel read ahead of readers that are far behind",
    "checkCRCOnRecover": "A start checks the checksums of bodies",
    "scrubBytesPerSecond": "Speed at which the open log is read again to find damage; 0: never",
    "scrubInterval": "Pause between two such rounds, in ms",
    "openFileCountMax": "Open log and queue files",
    "mappedBytesMax": "Bytes of the log that readers have touched and that stay mapped",
    # Flushing and the direct memory pool.
    "flushDiskType": "SYNC_FLUSH: a send is answered when it is on the disk; ASYNC_FLUSH: when it is written",
    "syncFlushTimeout": "Longest wait of a send for the disk, in ms; then FLUSH_DISK_TIMEOUT",
    "flushIntervalCommitLog": "ASYNC_FLUSH: pause between two fsyncs of the log, in ms",
    "flushCommitLogLeastPages": "ASYNC_FLUSH: unflushed pages of 4 KiB below which an fsync is left out",
    "flushCommitLogThoroughInterval": (
        "ASYNC_FLUSH: at the latest after this time everything is flushed, in ms"
    ),
    "flushIntervalConsumeQueue": "Pause between two flushes of queues, in ms",
    "flushConsumeQueueLeastPages": "Unflushed pages below which a queue is left out",
    "flushConsumeQueueThoroughInterval": "At the latest after this time all queues are flushed, in ms",
    "osPageCacheBusyTimeOutMills": (
        "Writes that take longer than this mark the page cache as busy, in ms: sends are refused meanwhile"
    ),
    "transientStorePoolEnable": (
        "Sends are written to locked memory first, the log file follows; not in controller mode"
    ),
    "transientStorePoolSize": "Buffers of this memory, each as long as a log file",
    "fastFailIfNoBufferInStorePool": "Refuse sends while no buffer is free",
    "commitIntervalCommitLog": "Pause between two writes from this memory to the file, in ms",
    "commitCommitLogLeastPages": "Pages below which such a write is left out",
    "commitCommitLogThoroughInterval": "At the latest after this time everything is written, in ms",
    "memoryBytes": (
        "Memory that the broker counts on for the page cache, in bytes; default: that of the machine"
    ),
    "frameBytesHeldMax": (
        "Bytes of unfinished frames of all connections; a connection that wants more is closed"
    ),
    # Retention.
    "fileReservedTime": "Hours that a log file is kept after its last message",
    "deleteWhen": "Hours of the day at which expired files are deleted",
    "cleanResourceInterval": "Pause between two looks at expired files, in ms",
    "deleteFileBatchMax": "Files that one round deletes at most",
    "cleanFileForciblyEnable": (
        "Delete the oldest files above `diskSpaceCleanForciblyRatio` though they have not expired"
    ),
    "diskMaxUsedSpaceRatio": "Use of the disk, in %, above which expired files are deleted at any hour",
    "diskSpaceCleanForciblyRatio": (
        "Use of the disk, in %, above which files are deleted by force, if that is allowed"
    ),
    "diskSpaceWarningLevelRatio": "Use of the disk, in %, above which sends are refused",
    # Replication.
    "inSyncReplicas": "SYNC_MASTER: copies that an answer promises, the master's counted",
    "totalReplicas": "Copies of the group, the master's counted",
    "slaveTimeout": "Longest wait of a send for slaves, in ms; then FLUSH_SLAVE_TIMEOUT",
    "syncMasterCompat4": "With `inSyncReplicas=1`, wait for one slave as RocketMQ 4.x does",
    "haListenPort": "Port on which slaves copy the log; 0: `listenPort` + 1",
    "haMasterAddress": "Slave: the master's replication port; empty: name servers tell",
    "haMasterRemotingAddress": "Slave: the master's `listenPort`; empty: name servers tell",
    "refuseSecondMaster": "A master that finds another one under its name refuses sends",
    "haMaxGapNotInSync": "Bytes a slave may lag and still count as in sync",
    "haSendHeartbeatInterval": "Pause between two heartbeats of replication, in ms",
    "haHousekeepingInterval": "Silence after which a replication connection is closed, in ms",
    "haTransferBatchSize": "Bytes of one transfer to a RocketMQ slave, and between elected brokers",
    "haFlowControlEnable": "Limit the speed of replication",
    "maxHaTransferByteInSecond": "With it: bytes per second",
    "haFirstTransfer": (
        "Where an empty slave begins: NEGOTIATED and FIRST_FILE with the oldest file, LAST_FILE as Java does"
    ),
    "haAllowedSlaves": "Addresses or networks that may copy the log; empty: all",
    "haSharedSecret": "Secret by which slaves prove themselves",
    "configSyncInterval": "Slave: pause between two looks at the master's tables, in ms",
    "divergentKeepBytes": "Bytes of cut tails that are kept in `divergent/`",
    "acceptLog": "A master that waits for what it may have lost takes its log as it is, once",
    # Elected masters.
    "enableControllerMode": "Controllers elect the master of the group",
    "controllerAddr": "Controllers, separated by `;`",
    "minInSyncReplicas": "Sends are refused while the SyncStateSet has fewer copies",
    "allAckInSyncStateSet": "A send waits for every member of the SyncStateSet",
    "storePathBrokerIdentity": "File of the id that controllers gave; empty: in the store directory",
    "storePathEpochFile": "File of the list of terms; empty: in the store directory",
    "brokerHeartbeatInterval": "Pause between two heartbeats to each controller, in ms",
    "sendHeartbeatTimeoutMillis": "Time-out of one heartbeat, in ms",
    "controllerHeartBeatTimeoutMills": "Silence after which controllers count this broker as gone, in ms",
    "syncBrokerMetadataPeriod": "Pause between two questions for the master, in ms",
    "brokerElectionPriority": "Between equal logs the broker with the smaller number is elected",
    "haMaxTimeSlaveNotCatchup": "A member that lags for longer leaves the SyncStateSet, in ms",
    "joinSetTimeoutMillis": "Time in which a member connects to a new master or leaves the set, in ms",
    "handoverAtStop": "A master that is stopped (SIGTERM) first hands over to a member of its set",
    "handoverStopLingerMillis": "Time for which a stopped master forwards sends after it handed over, in ms",
    "handoverLingerMillis": "Time for which a former master passes sends on to the next one, in ms",
    "asyncLearner": "This broker copies and is never elected",
    "syncFromLastFile": "An empty broker begins its copy with the newest log file",
    "reapplyBrokerId": "Apply for the id again when controllers do not know this broker",
    "controllerSharedSecret": "Secret that signs requests to controllers",
    # Access control.
    "aclEnable": "Rules of RocketMQ 4.x (`plain_acl.yml`) are applied",
    "aclConfigDir": "Directory of these rules; without it: `$ROCKETMQ_HOME/conf`",
    "authenticationEnabled": "Requests must be signed by a user of RocketMQ 5.x",
    "authorizationEnabled": "Policies of RocketMQ 5.x are applied",
    "authenticationWhitelist": "Requests that need no signature: codes; at a proxy, full names of requests",
    "authorizationWhitelist": "Requests that need no policy, in the same form",
    "initAuthenticationUser": "First user, made when there is none",
    "innerClientAuthenticationCredentials": "Credentials with which this server signs its own requests",
    "weakSignatureEnable": (
        "Accept RocketMQ's signatures, which cover the values of a request but not its code and field names"
    ),
    # TLS.
    "tls.server.mode": "DISABLED, PERMISSIVE (TLS and plain on one port) or ENFORCING",
    "tls.server.certPath": "Certificate of the server, PEM",
    "tls.server.keyPath": "Its private key, PEM",
    "tls.server.keyPassword": "Password of the key",
    "tls.server.trustCertPath": "Certificates of authorities that sign clients",
    "tls.server.need.client.auth": "Whether clients must present a certificate",
    "useTLS": "Connections to other servers use TLS",
    "tls.client.certPath": "Certificate for these connections",
    "tls.client.keyPath": "Its private key",
    "tls.client.keyPassword": "Password of the key",
    "tls.client.trustCertPath": "Certificates of authorities that sign servers",
    "tls.client.authServer": "Check the certificates of servers",
    # Name servers.
    "kvConfigPath": "File of the KV configuration",
    "configStorePath": "File in which settings are kept that tools change",
    "scanNotActiveBrokerInterval": "Pause between two looks for silent brokers, in ms",
    "serverChannelMaxIdleTimeSeconds": "Idle connections are closed after this time, in s",
    "networkListeners": "Further listeners, `NETWORK=port` or `NETWORK=host:port`, separated by `;`: "
    "their clients get the brokers' addresses of that network ([how to](operations/networks.md))",
    "clientNetworks": "Networks of clients by their addresses, `NETWORK=10.0.0.0/8,fd00::/8`, "
    "separated by `;`; the longest prefix applies",
    "networkFallback": "Brokers without an address in the asker's network: `registered` answers the "
    "registered address, `drop` leaves the broker out",
    "orderMessageEnable": "Routes carry the order configuration of their topics",
    "returnOrderTopicConfigToBroker": "Answers to registrations carry the order configuration",
    "enableAllTopicList": "Tools may list all topics",
    "enableTopicList": "Tools may list the topics of a cluster",
    "needWaitForService": "Routes are answered only some time after the start",
    "waitSecondsForService": "With it: the time, in s",
    "deleteTopicWithBrokerRegistration": (
        "A topic that a registration lacks is removed from that broker's routes"
    ),
    "supportActingMaster": "A slave with the smallest id is shown as master of a group without one",
    "notifyMinBrokerIdChanged": "Brokers are notified when the smallest id of their group changes",
    "enableControllerInNamesrv": "Run a controller in this process",
    # Controllers.
    "controllerDLegerGroup": "Name of the group of controllers",
    "controllerDLegerPeers": "Members, `id-host:port` separated by `;`",
    "controllerDLegerSelfId": "Id of this controller among them",
    "controllerJoin": "This controller is added to a running group",
    "controllerStorePath": "Directory of the agreed state",
    "scanInactiveMasterInterval": "Pause between two looks for silent masters, in ms",
    "enableElectUncleanMaster": "A broker outside the SyncStateSet may be elected: messages may be lost",
    "notifyBrokerRoleChanged": "Brokers are notified of elections",
    "raftHeartbeatMillis": "Pause between two heartbeats of the leader, in ms",
    "raftElectionTimeoutMillis": "Silence of the leader after which another one is elected, in ms",
    "snapshotEntries": "Log entries after which a snapshot is written",
    "controllerAdmitUnsigned": (
        "Accept unsigned requests although a secret is set, with a warning: for an upgrade, and for "
        "RocketMQ's old brokers"
    ),
    # Proxies.
    "grpcServerPort": "Port for clients of the gRPC protocol, with and without TLS",
    "enableProxy": "A [proxy](proxy.md) for gRPC clients in the process of the broker (`--proxy`)",
    "proxyWorkers": "Processes that share the port (`--workers`)",
    "proxyAdvertise": (
        "`host:port` for clients whose route request names no endpoints; others get back what they asked"
    ),
    "useEndpointPortFromRequest": "Routes repeat the port to which a client connects",
    "localServeAddr": "Address of this machine in its certificate, and in routes without `proxyAdvertise`",
    "proxyProtocolAddresses": (
        "Load balancers, separated by `;`, whose connections may begin with the PROXY protocol (v1, v2)"
    ),
    "rocketMQClusterName": "Cluster of the brokers",
    "proxyClusterName": "Label `cluster` of its metrics",
    "proxyName": "Label of its metrics; the host's name without one",
    "proxyStorePath": "Folder of the certificate that the proxy makes for itself",
    "tlsTestModeEnable": "A proxy without a certificate makes one for itself",
    "tlsCertPath": "Certificate of the proxy, PEM",
    "tlsKeyPath": "Its private key, PEM",
    "tlsKeyPassword": "Password of the key",
    "enableMessageBodyEmptyCheck": "Messages with an empty body are refused",
    "maxUserPropertySize": "Bytes of a message's properties, tag and keys",
    "userPropertyMaxNum": "Properties of a message",
    "maxMessageGroupSize": "Bytes of a message group, which must be shorter; 0: no limit",
    "maxDelayTimeMills": "Longest delay of a message, in ms; 0: no limit",
    "maxTransactionRecoverySecond": "Longest time before the first check of a transaction, in s; 0: no limit",
    "enableTopicMessageTypeCheck": "A message must be of the type of its topic",
    "enableProxyAutoRenew": "Messages of push consumers stay invisible while they are processed",
    "defaultInvisibleTimeMills": "Invisible time of such messages, in ms; it is renewed",
    "minInvisibleTimeMillsForRecv": "Shortest invisible time that other consumers may ask for, in ms",
    "maxInvisibleTimeMills": "Longest invisible time, in ms",
    "renewMaxTimeMillis": "Time after which a message is no longer renewed, in ms",
    "grpcClientConsumerMinLongPollingTimeoutMillis": "Shortest wait of a receive for messages, in ms",
    "grpcClientConsumerMaxLongPollingTimeoutMillis": "Longest wait of a receive for messages, in ms",
    "grpcClientConsumerLongPollingBatchSize": "Messages of one receive",
    "grpcClientProducerMaxAttempts": "Attempts of producers, as the proxy sets them",
    "grpcClientProducerBackoffInitialMillis": "Pause of producers before the second attempt, in ms",
    "grpcClientProducerBackoffMaxMillis": "Longest pause between attempts, in ms",
    "grpcClientProducerBackoffMultiplier": "Factor from each pause to the next",
    "metricCollectorMode": "Whether clients export their own metrics",
    "metricCollectorAddress": "Address to which they export them, as OTLP over gRPC",
    "useDelayLevel": (
        "Messages with a delivery time also get the level with the next longer delay, for brokers that have"
        " no timers (4.x, or `timerWheelEnable=false`)"
    ),
    "grpcProxyRelayRequestTimeoutInSeconds": "Wait for a client's answer to a question of a tool, in s",
    "grpcMaxInboundMessageSize": "Bytes of one request",
    "grpcClientIdleTimeMills": "Connections without a call are closed after this time, in ms",
    "grpcShutdownTimeSeconds": "Time for calls in flight to end when the proxy stops, in s",
}
"""The effect of each key, in one sentence."""

OURS: Final = frozenset(
    (
        "fastListen",
        "advertisedAddresses",
        "networkListeners",
        "clientNetworks",
        "networkFallback",
        "autoCreatePerAddressMax",
        "refuseSecondMaster",
        "tracesExporterType",
        "tracesExporterTarget",
        "scrubBytesPerSecond",
        "scrubInterval",
        "haFirstTransfer",
        "haAllowedSlaves",
        "haSharedSecret",
        "configSyncInterval",
        "divergentKeepBytes",
        "acceptLog",
        "syncMasterCompat4",
        "joinSetTimeoutMillis",
        "handoverLingerMillis",
        "handoverAtStop",
        "handoverStopLingerMillis",
        "reapplyBrokerId",
        "controllerSharedSecret",
        "aclConfigDir",
        "weakSignatureEnable",
        "openFileCountMax",
        "mappedBytesMax",
        "memoryBytes",
        "frameBytesHeldMax",
        "longPollCountMax",
        "controllerJoin",
        "raftHeartbeatMillis",
        "raftElectionTimeoutMillis",
        "snapshotEntries",
        "controllerAdmitUnsigned",
        "enableProxy",
        "proxyWorkers",
        "proxyAdvertise",
        "proxyProtocolAddresses",
        "proxyStorePath",
    )
)
"""The keys that RocketMQ does not have."""


DERIVED: Final = {
    "messageDelayLevel": "`1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h`",
    "memoryBytes": "",
    "bindAddress": "`0.0.0.0`; `::` on a machine without an IPv4 route",
    "brokerIP1": "`bindAddress`; if that is `0.0.0.0` or `::`, the machine's address on its default route",
}
"""The defaults that are not those of the option classes: most depend on the machine."""


def render_default(option: Field[Any]) -> str:
    """Returns the default in the form of a settings file."""
    value = option.default
    if value is MISSING and option.default_factory is not MISSING:
        value = option.default_factory()
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Enum):
        return str(value.name)
    if isinstance(value, (tuple, frozenset, list)):
        return " ".join(map(str, value)) if value else ""
    if value is None or value is MISSING or not option.repr:
        return ""
    if isinstance(value, Path):
        return str(value).replace(str(Path.home()), "~")
    return str(value)


def _row(name: str, key: Key) -> str:
    part, _, field_name = (key.fields[0] if key.fields else "").partition(".")
    option = (
        next((one for one in fields(PARTS[part]) if one.name == field_name), None) if part in PARTS else None
    )
    default = "" if option is None else render_default(option)
    shown = DERIVED.get(name, f"`{default}`" if default else "")
    mark = " (ours)" if name in OURS else ""
    allowed = key.kind.allowed.replace("|", "\\|")
    return f"| `{name}`{mark} | {shown} | {allowed} | {EFFECTS[name]} |"


def _table(names: Iterable[str], keys: Mapping[str, Key]) -> Iterator[str]:
    yield "| key | default | allowed | effect |"
    yield "|---|---|---|---|"
    yield from (_row(name, keys[name]) for name in names)
    yield ""


def _own(keys: Mapping[str, Key]) -> Iterator[str]:
    """Returns the keys of a server that other servers do not share."""
    return (name for name in keys if name not in TLS_KEYS and name not in EXPORT_KEYS)


def render() -> Iterator[str]:
    """Returns the lines of the page."""
    yield "# Settings"
    yield ""
    yield "Generated by `python -m settings_page`. Keys are RocketMQ's, but those marked *ours*; all"
    yield "exist since 0.1.0. A key goes into the file that"
    yield "`tandemmq broker -c FILE` reads, as `key=value`, or behind `--set`; `tandemmq broker -c FILE"
    yield "--check-config` says what is wrong with a file. Keys of"
    yield "RocketMQ without an effect here are accepted, and named in the log when they differ from"
    yield "RocketMQ's default."
    yield ""
    for chapter, names in CHAPTERS.items():
        yield f"## {chapter}"
        yield ""
        yield from _table(names, BROKER_KEYS)
    yield "## TLS, of all servers"
    yield ""
    yield from _table(TLS_KEYS, TLS_KEYS)
    yield "## Metrics and health, of all servers"
    yield ""
    yield from _table(EXPORT_KEYS, BROKER_KEYS)
    yield "## Name servers"
    yield ""
    yield from _table(_own(NAMESERVER_KEYS), NAMESERVER_KEYS)
    yield "## Controllers"
    yield ""
    yield "A name server with `enableControllerInNamesrv=true` accepts these keys, too."
    yield ""
    yield from _table(_own(CONTROLLER_KEYS), CONTROLLER_KEYS)
    yield "## Proxies"
    yield ""
    yield "`tandemmq proxy -c FILE` reads them; FILE may also be a JSON object, as RocketMQ's rmq-proxy.json."
    yield ""
    yield from _table(_own(PROXY_KEYS), PROXY_KEYS)
    yield "## Other names, and values that are refused"
    yield ""
    yield from (f"- `{name}` is another name of `{key}`." for name, key in ALIASES.items())
    for name, (value, why) in REFUSED.items():
        yield f"- `{name}`: only {f'`{value}`' if value else 'empty'}; {why}."


if __name__ == "__main__":
    sys.stdout.write("\n".join(render()) + "\n")
