"""RocketMQ's keys: the option fields that they set, and the keys without an effect here.

A key may set several fields, or none if only its relation to others is checked (`load.check_broker`). Keys
marked "ours" do not exist in RocketMQ. Keys without an effect here are in `BROKER_INERT` and similar tables.
Keys that a user relies on for safety are in `REFUSED`: every value except the harmless one is an error,
because ignoring it would expose or lose data.
Source: spec store 20, spec semantics 25.2 to 25.4, spec replication 17, spec nameserver 10.
"""

from __future__ import annotations

from dataclasses import Field, dataclass, replace
from pathlib import Path
from typing import Any, Final

from tandemmq.broker.options import RequestModeName
from tandemmq.config import kinds
from tandemmq.config.kinds import FLAG, POSITIVE, ValueKind, choice, whole
from tandemmq.controller.options import ControllerOptions
from tandemmq.nameserver.options import option_keys as nameserver_option_keys
from tandemmq.protocol.frame import FRAME_BYTES_MAX
from tandemmq.proxy.options import MetricCollectorMode, ProxyOptions
from tandemmq.remoting.options import ClientAuth, TlsMode
from tandemmq.remoting.settings import option_keys
from tandemmq.replication.core.options import FirstTransfer
from tandemmq.store.options import BrokerRole, FlushMode
from tandemmq.telemetry.export_options import ExportOptions, MetricsExporter
from tandemmq.units import INT32_MAX, INT64_MAX, KIB

BODY_BYTES_MAX: Final = FRAME_BYTES_MAX - 128 * KIB
"""The room in a frame, without its header and a message's properties."""


@dataclass(frozen=True, slots=True)
class Key:
    """The allowed texts of a key, and the `part.field` values that it sets."""

    kind: ValueKind
    fields: tuple[str, ...]


def _key(kind: ValueKind, *fields: str) -> Key:
    return Key(kind, fields)


TLS_KEYS: Final[dict[str, Key]] = {
    "tls.server.mode": _key(choice(TlsMode), "tls.mode"),
    "tls.server.certPath": _key(kinds.OPTIONAL_FILE, "tls.cert_path"),
    "tls.server.keyPath": _key(kinds.OPTIONAL_FILE, "tls.key_path"),
    "tls.server.keyPassword": _key(kinds.PASSWORD, "tls.key_password"),
    "tls.server.trustCertPath": _key(kinds.OPTIONAL_FILE, "tls.trust_path"),
    "tls.server.need.client.auth": _key(choice(ClientAuth), "tls.client_auth"),
    "useTLS": _key(FLAG, "tls.dials_tls"),
    "tls.client.certPath": _key(kinds.OPTIONAL_FILE, "tls.client_cert_path"),
    "tls.client.keyPath": _key(kinds.OPTIONAL_FILE, "tls.client_key_path"),
    "tls.client.keyPassword": _key(kinds.PASSWORD, "tls.client_key_password"),
    "tls.client.trustCertPath": _key(kinds.OPTIONAL_FILE, "tls.client_trust_path"),
    "tls.client.authServer": _key(FLAG, "tls.verifies_server"),
}
"""Keys of brokers and name servers; in RocketMQ they are system properties or are in tls.config.file."""

TLS_FILE_KEYS: Final = ("tls.config.file", "tlsConfigFile")
"""The keys of a properties file with more TLS settings; directly given settings win."""


def _exporter_kind() -> ValueKind:
    """Returns the kind of exporters; RocketMQ allows their numbers, too."""
    by_name = choice(MetricsExporter)
    numbers = {str(number): name for number, name in enumerate(("DISABLE", "OTLP_GRPC", "PROM", "LOG"))}
    return ValueKind(by_name.allowed, lambda text: by_name.parse(numbers.get(text, text)))


EXPORT_KINDS: Final = {
    "metricsExporterType": _exporter_kind(),
    "metricsPromExporterHost": kinds.OPTIONAL_IP,
    "metricsPromExporterPort": kinds.PORT,
    "metricsLabel": kinds.LABELS,
    "metricsGrpcExporterTarget": kinds.COLLECTOR,
    "metricsGrpcExporterHeader": replace(kinds.PAIRS, is_secret=True),
    "metricGrpcExporterTimeOutInMills": POSITIVE,
    "metricGrpcExporterIntervalInMills": POSITIVE,
    "metricLoggingExporterIntervalInMills": POSITIVE,
    "metricsInDelta": FLAG,
}
"""The kinds of the settings of `ExportOptions`, which all servers have."""

BROKER_KEYS: Final[dict[str, Key]] = {
    **TLS_KEYS,
    # Identity and addresses
    "brokerClusterName": _key(kinds.NAME, "broker.cluster_name"),
    "brokerName": _key(kinds.NAME, "broker.broker_name"),
    "brokerId": _key(whole(0), "broker.broker_id"),
    "brokerRole": _key(choice(BrokerRole), "store.role"),
    "brokerPermission": _key(whole(0, 7), "broker.broker_permission"),
    "bindAddress": _key(kinds.IP, "broker.listen_host"),
    "listenPort": _key(kinds.PORT, "broker.listen_port"),
    "fastListen": _key(FLAG, "broker.fast_listen"),  # ours
    "brokerIP1": _key(kinds.HOST, "broker.advertised_host"),
    "brokerIP2": _key(kinds.HOST, "broker.ha_advertised_host"),
    "advertisedAddresses": _key(kinds.ADVERTISED, "broker.advertised_addresses"),  # ours
    "haListenPort": _key(kinds.PORT, "broker.ha_listen_port"),
    "haMasterAddress": _key(kinds.ADDRESS, "broker.ha_master_address"),
    "refuseSecondMaster": _key(FLAG, "broker.refuse_second_master"),  # ours
    "haMasterRemotingAddress": _key(kinds.ADDRESS, "broker.ha_master_remoting_address"),
    "namesrvAddr": _key(kinds.ADDRESSES, "broker.name_servers"),
    "registerNameServerPeriod": _key(POSITIVE, "broker.register_period_ms"),
    "registerBrokerTimeoutMills": _key(POSITIVE, "broker.register_timeout_ms"),
    **{
        name: _key(EXPORT_KINDS[name], f"broker.{option.name}")
        for name, option in option_keys(ExportOptions).items()
    },
    "tracesExporterType": _key(kinds.TRACES_EXPORTER, "broker.traces_exporter"),  # ours
    "tracesExporterTarget": _key(kinds.COLLECTOR, "broker.traces_target"),  # ours
    "metricsOtelCardinalityLimit": _key(kinds.clamped(1, 8_192), "broker.metrics_series_max"),
    "metricsPerQueue": _key(FLAG, "broker.metrics_per_queue"),  # ours
    "enableStatsMetrics": _key(FLAG, "broker.stats_metrics"),
    "enableRequestMetrics": _key(FLAG, "broker.request_metrics"),
    "enableConnectionMetrics": _key(FLAG, "broker.connection_metrics"),
    "enableLagAndDlqMetrics": _key(FLAG, "broker.lag_metrics"),
    "enableTransactionMetrics": _key(FLAG, "broker.transaction_metrics"),
    "enableMessageStoreMetrics": _key(FLAG, "broker.store_metrics"),
    "enablePopMetrics": _key(FLAG, "broker.pop_metrics"),
    "enableRemotingMetrics": _key(FLAG, "broker.remoting_metrics"),
    "enableProxy": _key(FLAG, "inner_proxy.is_enabled"),  # ours
    "grpcServerPort": _key(kinds.PORT, "inner_proxy.port"),
    # Topics and groups
    "autoCreateTopicEnable": _key(FLAG, "broker.auto_create_topic"),
    "autoCreatePerAddressMax": _key(whole(), "broker.created_per_address_max"),  # ours
    "defaultTopicQueueNums": _key(whole(1, 65536), "broker.default_topic_queue_count"),
    "clusterTopicEnable": _key(FLAG, "broker.cluster_topic_enable"),
    "brokerTopicEnable": _key(FLAG, "broker.broker_topic_enable"),
    "traceTopicEnable": _key(FLAG, "broker.trace_topic_enable"),
    "msgTraceTopicName": _key(kinds.NAME, "broker.trace_topic_name"),
    "validateSystemTopicWhenUpdateTopic": _key(FLAG, "broker.validate_system_topic_when_update"),
    "enableMixedMessageType": _key(FLAG, "broker.mixed_message_type_enable"),
    "autoCreateSubscriptionGroup": _key(FLAG, "broker.auto_create_group"),
    "enableCreateSysGroup": _key(FLAG, "broker.create_system_groups"),
    # Sends
    "regionId": _key(kinds.TEXT, "broker.region_id"),
    "traceOn": _key(FLAG, "broker.trace_on"),
    "startAcceptSendRequestTimeStamp": _key(whole(0, INT64_MAX), "broker.accept_sends_from_ms"),
    "maxMessageSize": _key(whole(1, BODY_BYTES_MAX), "store.message_bytes_max"),
    "messageDelayLevel": _key(kinds.DELAY_LEVELS, "store.delay_levels_ms"),
    "timerWheelEnable": _key(FLAG, "broker.timer_wheel_enable"),
    "timerMaxDelaySec": _key(whole(1, 10**9), "broker.timer_delay_s_max"),
    "recallMessageEnable": _key(FLAG, "broker.recall_enable"),
    "storeReplyMessageEnable": _key(FLAG, "broker.reply_store_enable"),
    # Transactions
    "rejectTransactionMessage": _key(FLAG, "broker.transactions_refused"),
    "transactionTimeOut": _key(POSITIVE, "broker.transaction_timeout_ms"),
    "transactionCheckInterval": _key(POSITIVE, "broker.transaction_check_period_ms"),
    "transactionCheckMax": _key(POSITIVE, "broker.transaction_check_count_max"),
    # Pulls
    "enablePropertyFilter": _key(FLAG, "broker.property_filter_enable"),
    "slaveReadEnable": _key(FLAG, "broker.slave_read_enable"),
    "litePullMessageEnable": _key(FLAG, "broker.lite_pull_enable"),
    "coldDataFlowControlEnable": _key(FLAG, "broker.cold_control_enable"),
    "cgColdReadThreshold": _key(kinds.POSITIVE_LONG, "broker.cold_bytes_per_group_max"),
    "globalColdReadThreshold": _key(kinds.POSITIVE_LONG, "broker.cold_bytes_max"),
    "rejectPullConsumerEnable": _key(FLAG, "broker.reject_pull_consumers"),
    "longPollingEnable": _key(FLAG, "broker.long_polling_enable"),
    "shortPollingTimeMills": _key(POSITIVE, "broker.short_polling_ms"),
    "accessMessageInMemoryMaxRatio": _key(whole(0, 100), "store.access_message_in_memory_ratio"),
    "maxTransferBytesOnMessageInMemory": _key(POSITIVE, "store.transfer_bytes_in_memory_max"),
    "maxTransferCountOnMessageInMemory": _key(POSITIVE, "store.transfer_count_in_memory_max"),
    "maxTransferBytesOnMessageInDisk": _key(POSITIVE, "store.transfer_bytes_on_disk_max"),
    "maxTransferCountOnMessageInDisk": _key(POSITIVE, "store.transfer_count_on_disk_max"),
    "maxFilterMessageSize": _key(whole(20), "store.filter_scan_bytes_max"),
    "offsetCheckInSlave": _key(FLAG, "store.offset_check_in_slave"),
    "maxMsgsNumBatch": _key(whole(1, 2**20), "store.query_count_max"),
    # Pops and assignment
    "popPollingSize": _key(POSITIVE, "broker.pop_poll_count_per_group_max"),
    "maxPopPollingSize": _key(POSITIVE, "broker.pop_poll_count_max"),
    "popCkMaxBufferSize": _key(POSITIVE, "broker.pop_lease_count_max"),
    "popFromRetryProbability": _key(whole(0, 100), "broker.pop_retry_percent"),
    "popFromRetryProbabilityForPriority": _key(whole(0, 100), "broker.priority_retry_percent"),
    "priorityOrderAsc": _key(FLAG, "broker.priority_order_asc"),
    "useSeparateRetryQueue": _key(FLAG, "broker.separate_retry_queues"),
    "enableRetryTopicV2": _key(FLAG, "broker.pop_retry_v2"),
    "retrieveMessageFromPopRetryTopicV1": _key(FLAG, "broker.pop_reads_retry_v1"),
    "popResponseReturnActualRetryTopic": _key(FLAG, "broker.pop_returns_retry_topic"),
    "initPopOffsetByCheckMsgInMem": _key(FLAG, "broker.pop_init_checks_memory"),
    "reviveQueueNum": _key(whole(1, 512), "broker.revive_queue_count"),
    "serverLoadBalancerEnable": _key(FLAG, "broker.server_assignment_enable"),
    "defaultMessageRequestMode": _key(choice(RequestModeName), "broker.default_request_mode"),
    "defaultPopShareQueueNum": _key(whole(-(2**31), INT32_MAX), "broker.default_pop_share_count"),
    # Offsets and clients
    "flushConsumerOffsetInterval": _key(POSITIVE, "broker.consumer_offset_flush_ms"),
    "consumerOffsetUpdateVersionStep": _key(POSITIVE, "broker.consumer_offset_version_step"),
    "flushDelayOffsetInterval": _key(POSITIVE, "broker.delay_offset_flush_ms"),
    "delayOffsetUpdateVersionStep": _key(POSITIVE, "broker.delay_offset_version_step"),
    "useServerSideResetOffset": _key(FLAG, "broker.server_side_reset"),
    "notifyConsumerIdsChangedEnable": _key(FLAG, "broker.notify_consumer_ids_changed"),
    "realTimeNotifyConsumerChange": _key(FLAG, "broker.notify_at_once"),
    "channelExpiredTimeout": _key(POSITIVE, "broker.channel_expired_ms"),
    "configBlackList": _key(kinds.LIST, "broker.config_black_list"),
    # Files
    "storePathRootDir": _key(kinds.DIRECTORY, "store.root"),
    "storePathCommitLog": _key(kinds.DIRECTORY, "store.commit_log_dir"),
    "mappedFileSizeCommitLog": _key(whole(256), "store.commit_log_file_bytes"),
    "mappedFileSizeConsumeQueue": _key(whole(20), "store.consume_queue_file_bytes"),
    "messageIndexEnable": _key(FLAG, "store.key_index_enable"),
    "maxHashSlotNum": _key(whole(1, 2**27), "store.key_index_slot_count"),
    "maxIndexNum": _key(whole(2, 2**27), "store.key_index_entry_count"),
    "warmMapedFileEnable": _key(FLAG, "store.warm_segments"),
    "flushLeastPagesWhenWarmMapedFile": _key(whole(1, 2**20), "store.warm_flush_pages"),
    "dataReadAheadEnable": _key(FLAG, "store.read_ahead_enable"),
    "checkCRCOnRecover": _key(FLAG, "store.check_crc_on_recover"),
    "scrubBytesPerSecond": _key(whole(0, 2**31), "store.scrub_bytes_per_second"),  # ours
    "scrubInterval": _key(POSITIVE, "store.scrub_interval_ms"),  # ours
    # Flushing
    "flushDiskType": _key(choice(FlushMode), "store.flush_mode"),
    "syncFlushTimeout": _key(POSITIVE, "store.sync_flush_timeout_ms"),
    "flushIntervalCommitLog": _key(POSITIVE, "store.flush_interval_ms"),
    "flushCommitLogLeastPages": _key(whole(0, 2**20), "store.flush_least_pages"),
    "flushCommitLogThoroughInterval": _key(POSITIVE, "store.flush_thorough_interval_ms"),
    "flushIntervalConsumeQueue": _key(POSITIVE, "store.queue_flush_interval_ms"),
    "flushConsumeQueueLeastPages": _key(whole(0, 2**20), "store.queue_flush_least_pages"),
    "flushConsumeQueueThoroughInterval": _key(POSITIVE, "store.queue_flush_thorough_interval_ms"),
    "osPageCacheBusyTimeOutMills": _key(POSITIVE, "store.page_cache_busy_ms"),
    # Writing to locked memory first
    "transientStorePoolEnable": _key(FLAG, "store.transient_pool_enable"),
    "transientStorePoolSize": _key(whole(1, 2**20), "store.transient_pool_size"),
    "fastFailIfNoBufferInStorePool": _key(FLAG, "store.fail_fast_without_buffer"),
    "commitIntervalCommitLog": _key(POSITIVE, "store.commit_interval_ms"),
    "commitCommitLogLeastPages": _key(whole(0, 2**20), "store.commit_least_pages"),
    "commitCommitLogThoroughInterval": _key(POSITIVE, "store.commit_thorough_interval_ms"),
    # Retention
    "fileReservedTime": _key(whole(1, 24 * 36_500), "store.file_reserved_hours"),
    "deleteWhen": _key(kinds.HOURS, "store.delete_at_hours"),
    "cleanResourceInterval": _key(POSITIVE, "store.clean_interval_ms"),
    "deleteFileBatchMax": _key(whole(1, 2**20), "store.delete_file_count_max"),
    "cleanFileForciblyEnable": _key(FLAG, "store.clean_forcibly_enable"),
    "diskMaxUsedSpaceRatio": _key(kinds.clamped(10, 95), "store.disk_used_percent_max"),
    "diskSpaceCleanForciblyRatio": _key(kinds.clamped(30, 85), "store.disk_forcible_percent"),
    "diskSpaceWarningLevelRatio": _key(kinds.clamped(35, 90), "store.disk_warning_percent"),
    # Replication
    "inSyncReplicas": _key(whole(0, 100), "store.in_sync_replicas"),
    "totalReplicas": _key(whole(1, 100), "store.total_replicas"),
    "minInSyncReplicas": _key(whole(1, 100), "election.copy_count_min"),
    "slaveTimeout": _key(POSITIVE, "store.slave_timeout_ms"),
    "haMaxGapNotInSync": _key(
        kinds.POSITIVE_LONG, "store.replica_gap_bytes_max", "replication.in_sync_gap_bytes_max"
    ),
    "haSendHeartbeatInterval": _key(POSITIVE, "replication.heartbeat_interval_ms"),
    "haHousekeepingInterval": _key(POSITIVE, "replication.silence_ms_max"),
    "haTransferBatchSize": _key(POSITIVE, "replication.transfer_bytes_max"),
    "haFlowControlEnable": _key(FLAG, "replication.flow_control"),
    "maxHaTransferByteInSecond": _key(kinds.POSITIVE_LONG, "replication.sent_bytes_per_second_max"),
    "haFirstTransfer": _key(choice(FirstTransfer), "replication.first_transfer"),  # ours
    "haAllowedSlaves": _key(kinds.NETWORKS, "replication.allowed_slaves"),  # ours
    "haSharedSecret": _key(kinds.SECRET, "replication.shared_secret"),  # ours
    "configSyncInterval": _key(POSITIVE, "replication.config_sync_interval_ms"),  # ours
    "divergentKeepBytes": _key(whole(0, INT64_MAX), "store.divergent_bytes_max"),  # ours
    "acceptLog": _key(FLAG, "store.accept_log"),  # ours
    "syncMasterCompat4": _key(FLAG, "store.sync_master_compat4"),  # ours
    # Elected masters
    "enableControllerMode": _key(FLAG, "election.is_enabled"),
    "controllerAddr": _key(kinds.ADDRESSES, "election.controllers", "broker.controllers"),
    "storePathBrokerIdentity": _key(kinds.FILE, "election.identity_path"),
    "storePathEpochFile": _key(kinds.FILE, "election.epoch_path"),
    "brokerHeartbeatInterval": _key(POSITIVE, "election.heartbeat_ms"),
    "sendHeartbeatTimeoutMillis": _key(POSITIVE, "election.heartbeat_timeout_ms"),
    "controllerHeartBeatTimeoutMills": _key(POSITIVE, "election.silence_ms_max"),
    "syncBrokerMetadataPeriod": _key(POSITIVE, "election.poll_ms"),
    "brokerElectionPriority": _key(whole(-(2**31), INT32_MAX), "election.priority"),
    "allAckInSyncStateSet": _key(FLAG, "election.waits_for_all"),
    "haMaxTimeSlaveNotCatchup": _key(POSITIVE, "election.lag_ms_max"),
    "joinSetTimeoutMillis": _key(POSITIVE, "election.join_ms_max"),  # ours
    "handoverLingerMillis": _key(whole(0), "election.linger_ms"),  # ours
    "handoverAtStop": _key(FLAG, "election.hands_over_at_stop"),  # ours
    "handoverStopLingerMillis": _key(whole(0), "election.stop_linger_ms"),  # ours
    "asyncLearner": _key(FLAG, "election.is_learner"),
    "syncFromLastFile": _key(FLAG, "election.from_last_file"),
    "reapplyBrokerId": _key(FLAG, "election.reapplies_id"),  # ours
    "controllerSharedSecret": _key(kinds.SECRET, "election.shared_secret"),  # ours
    # Access control
    "aclEnable": _key(FLAG, "access.acl_enable"),
    "aclConfigDir": _key(kinds.DIRECTORY, "access.acl_directory"),  # ours
    "authenticationEnabled": _key(FLAG, "access.authentication_enabled"),
    "authorizationEnabled": _key(FLAG, "access.authorization_enabled"),
    "authenticationWhitelist": _key(kinds.CODES, "access.authentication_white_codes"),
    "authorizationWhitelist": _key(kinds.CODES, "access.authorization_white_codes"),
    "initAuthenticationUser": _key(kinds.USER, "access.first_user"),
    "innerClientAuthenticationCredentials": _key(kinds.CREDENTIALS, "access.inner_credentials"),
    "weakSignatureEnable": _key(FLAG, "access.weak_signatures"),  # ours
    # Bounds; all of them are ours
    "openFileCountMax": _key(whole(8, 2**20), "store.open_file_count_max"),
    "mappedBytesMax": _key(kinds.POSITIVE_LONG, "store.mapped_bytes_max"),
    "memoryBytes": _key(kinds.POSITIVE_LONG, "store.memory_bytes"),
    "frameBytesHeldMax": _key(kinds.POSITIVE_LONG, "broker.frame_bytes_held_max"),
    "longPollCountMax": _key(POSITIVE, "broker.long_poll_count_max"),
}


def _kind_of(option: Field[Any]) -> ValueKind:
    """Returns the kind of an option's values, derived from its default."""
    if isinstance(option.default, bool):
        return FLAG
    if isinstance(option.default, int):
        return kinds.PORT if option.name == "listen_port" else POSITIVE
    if isinstance(option.default, Path):
        return kinds.DIRECTORY if option.name == "store_path" else kinds.FILE
    if not option.repr:
        return kinds.SECRET
    return kinds.IP if option.name == "listen_host" else kinds.TEXT


_PROXY_KINDS: Final = {
    "namesrvAddr": kinds.NAME_SERVERS,
    "proxyAdvertise": kinds.ADDRESS,
    "aclConfigDir": kinds.DIRECTORY,
    **EXPORT_KINDS,
    "proxyProtocolAddresses": kinds.IPS,
    "proxyStorePath": kinds.DIRECTORY,
    "maxMessageSize": whole(0),
    "maxMessageGroupSize": whole(0),
    "maxDelayTimeMills": whole(0),
    "maxTransactionRecoverySecond": whole(0),
    "messageDelayLevel": kinds.DELAY_LEVELS,
    "metricCollectorMode": choice(MetricCollectorMode),
    "metricCollectorAddress": kinds.ADDRESS,
    "authenticationWhitelist": kinds.OPTIONAL_TEXT,
    "authorizationWhitelist": kinds.OPTIONAL_TEXT,
}
"""The kinds that the defaults of a proxy's options do not show."""

_NAMESERVER_KINDS: Final = {
    **EXPORT_KINDS,
    "networkListeners": kinds.OPTIONAL_TEXT,
    "clientNetworks": kinds.OPTIONAL_TEXT,
}
"""The kinds that may be empty; the options check the texts."""

NAMESERVER_KEYS: Final[dict[str, Key]] = {
    **TLS_KEYS,
    **{
        name: _key(
            _NAMESERVER_KINDS.get(name) or _kind_of(option),
            f"nameserver.{option.name}",
        )
        for name, option in nameserver_option_keys().items()
    },
    "enableControllerInNamesrv": _key(FLAG, "caller.has_controller"),
    "innerClientAuthenticationCredentials": _key(
        kinds.CREDENTIALS, "caller.credentials"
    ),  # ours, as the brokers'
}

CONTROLLER_KEYS: Final[dict[str, Key]] = {
    **TLS_KEYS,
    **{
        name: _key(EXPORT_KINDS.get(name) or _kind_of(option), f"controller.{option.name}")
        for name, option in option_keys(ControllerOptions).items()
    },
    "innerClientAuthenticationCredentials": _key(
        kinds.CREDENTIALS, "caller.credentials"
    ),  # ours, as the brokers'
}
"""The keys of a controller. A name server with enableControllerInNamesrv also accepts those that are not its
own keys.
"""

PROXY_KEYS: Final[dict[str, Key]] = {
    **TLS_KEYS,
    "tlsCertPath": TLS_KEYS["tls.server.certPath"],
    "tlsKeyPath": TLS_KEYS["tls.server.keyPath"],
    "tlsKeyPassword": TLS_KEYS["tls.server.keyPassword"],
    **{
        name: _key(_PROXY_KINDS.get(name) or _kind_of(option), f"proxy.{option.name}")
        for name, option in option_keys(ProxyOptions).items()
    },
    "innerClientAuthenticationCredentials": _key(
        kinds.CREDENTIALS, "caller.credentials"
    ),  # ours, as the brokers'
}

ALIASES: Final = {
    "haSlaveFallbehindMax": "haMaxGapNotInSync",
    "tls.enable": "useTLS",
    "enableACL": "aclEnable",  # of RocketMQ's proxy before 5.3
}
"""The other names of keys: those of 4.x, and of Java's system properties."""

REFUSED: Final = {
    "enableDLegerCommitLog": ("false", "the DLedger log is not served"),
    "duplicationEnable": ("false", "it would switch replication off"),
    "storeType": ("default", "RocksDB queues are not served"),
    "readOnlyCommitLogStorePaths": ("", "the CommitLog has one directory"),
}
"""The only supported value of a key, and the reason."""


# Keys without an effect here, so that a broker.conf written for Java starts.
#
# Each key has RocketMQ's default if that is a fixed value: repeating a default in a file has no effect and
# gives no warning. The names and defaults are those that the admin tool shows of a 5.3.3 broker and name
# server, and those of spec store 20, spec semantics 25.2 and spec replication 17.


def _parse_inert(text: str) -> dict[str, str | None]:
    pairs = (token.partition("=") for token in text.split())
    return {name: default if equals else None for name, equals, default in pairs}


BROKER_INERT: Final = _parse_inert(
    """
    accessMessageInMemoryHotRatio=26 accountStatsEnable=true accountStatsPrintZeroValues=true
    ackMessageThreadPoolNums ackThreadPoolQueueCapacity=100000 adminBrokerThreadPoolNums
    adminBrokerThreadPoolQueueCapacity=10000 allowRecallWhenBrokerNotWriteable=true appendAckAsync=false
    appendCkAsync=false asyncSendEnable=true authConfigPath authenticationProvider authorizationProvider
    autoDeleteUnusedStats=true autoMessageVersionOnTopicLen=true batchDispatchRequestThreadPoolNums
    bitMapLengthConsumeQueueExt=112 bottomMostCompressionTypeForConsumeQueueStore=zstd
    broadcastOffsetExpireMaxSecond=300 broadcastOffsetExpireSecond=120 brokerConfigPath
    brokerFastFailureEnable=true brokerMetadataPath brokerNotActiveTimeoutMillis=10000
    channelNotActiveInterval=60000 checkSyncStateSetPeriod=5000 cleanOfflineBrokerInterval=30000
    cleanRocksDBDirtyCQIntervalMin=60 cleanSwapedMapInterval=300000 clearRetryTopicWhenDeleteTopic=true
    clientAsyncSemaphoreValue=65535 clientCallbackExecutorThreads clientChannelMaxIdleTimeSeconds=120
    clientCloseSocketIfTimeout=true clientManageThreadPoolNums clientManagerThreadPoolQueueCapacity=1000000
    clientOnewaySemaphoreValue=65535 clientPooledByteBufAllocatorEnable=false clientSocketRcvBufSize=0
    clientSocketSndBufSize=0 clientWorkerThreads=4 coldCtrStrategyEnable=false coldDataScanEnable=false
    commercialBaseCount=1 commercialBigCount commercialEnable commercialSizePerMsg=4096 commercialTimerCount
    commercialTransCount commitLogForceSwapMapInterval=43200000 commitLogSwapMapInterval=3600000
    commitLogSwapMapReserveFileNum=100 compactionCqMappedFileSize=10485760 compactionMappedFileSize=104857600
    compactionScheduleInternal=900000 compactionThreadNum=6 compatibleWithOldNameSrv=true
    compressedRegister=false configManagerVersion=v1 connectTimeoutMillis=3000
    consumerFallbehindThreshold=17179869184 consumerManageThreadPoolNums
    consumerManagerThreadPoolQueueCapacity=1000000 correctLogicMinOffsetForceInterval=300000
    correctLogicMinOffsetSleepInterval=1 dLegerGroup dLegerPeers dLegerSelfId debugLockEnable=false
    defaultQueryMaxNum=32 deleteCommitLogFilesInterval=100 deleteConsumeQueueFilesInterval=100
    destroyMapedFileIntervalForcibly=120000 disableCallbackExecutor=false
    disableConsumeIfConsumerReadSlowly=false disableNettyWorkerGroup=false disappearTimeAfterStart=-1
    diskFallRecorded=true dispatchCqCacheNum=4096 dispatchCqThreads=10 dispatchFromSenderThread=false
    enableAsyncReput=true enableAutoInSyncReplicas=false enableBatchPush=false enableBroadcastOffsetStore=true
    enableBuildConsumeQueueConcurrently=false enableCalcFilterBitMap=false enableCleanExpiredOffset=false
    enableCompaction=true enableConsumeQueueExt=false enableDetailStat=true
    enableFastChannelEventProcess=false enableLmq=false enableLmqStats=false enableMultiDispatch=false
    enableNetWorkFlowControl=false enableNotifyAfterPopOrderLockRelease=true
    enableNotifyBeforePopCalculateLag=true enablePopBatchAck=false enablePopBufferMerge=false
    enablePopLog=false enablePopMessageThreshold=false enableReconnectForGoAway=true
    enableRegisterProducer=true enableRemoteEscape=false enableRocksDBLog=false enableRunningFlagsInFlush
    enableScheduleAsyncDeliver=false enableScheduleMessageStats=true enableShutdownGracefully=false
    enableSingleTopicRegister=false enableSkipLongAwaitingAck=false enableSlaveActingMaster=false
    enableSplitMetadata enableSplitRegistration=false enabledAppendPropCRC=false
    endTransactionPoolQueueCapacity=100000 endTransactionThreadPoolNums estimateAccumulation=true
    expectConsumerNumUseFilter=32 fetchControllerAddrByDnsLookup=false fetchNameSrvAddrByDnsLookup=false
    fetchNamesrvAddrByAddressServer=false fetchNamesrvAddrInterval=10000 filterDataCleanTimeSpan=86400000
    filterServerNums filterSupportRetry=false flushCommitLogTimed=true
    flushConsumerOffsetHistoryInterval=60000 forceRegister=true forceVerifyPropCRC=false forwardTimeout=3000
    heartbeatThreadPoolNums heartbeatThreadPoolQueueCapacity=50000 highSpeedMode=false isBrokerContainer=false
    isInBrokerContainer=false isScanAvailableNameSrv=true isolateLogEnable=false litePullMessageThreadPoolNums
    litePullThreadPoolQueueCapacity=100000 loadBalancePollNameServerInterval=30000
    loadBalanceProcessorThreadPoolNums loadBalanceThreadPoolQueueCapacity=100000 lockInStrictMode=false
    logicQueueForceSwapMapInterval=43200000 logicQueueSwapMapInterval=3600000
    logicQueueSwapMapReserveFileNum=20 logicalDiskSpaceCleanForciblyThreshold=0.8
    mappedFileSizeConsumeQueueExt=50331648 mappedFileSizeTimerLog=104857600 mappedFileSwapEnable=true
    mapperFileSizeBatchConsumeQueue=13800000 maxAsyncPutMessageRequests=5000 maxBatchDeleteFilesNum=50
    maxChecksumRange=1073741824 maxConsumeQueueScan=20000 maxDelayTime maxErrorRateOfBloomFilter=20
    maxLmqConsumeQueueNum=20000 maxOffsetMapSize=104857600 maxReconnectIntervalTimeSeconds=60
    maxRecoveryCommitlogFiles=30 maxSlaveResendLength=268435456 maxStatsIdleTimeInMinutes=-1
    maxTopicLength=127 memTableFlushIntervalMs=3600000 messageIndexSafe=false messageStorePlugIn=
    migrateAuthFromV1Enabled
    notifyBrokerRoleChanged notifyMinBrokerIdChanged popCkOffsetMaxQueueSize=20000 popCkStayBufferTime=10000
    popCkStayBufferTimeOut=3000 popConsumerFSServiceInit=true popConsumerKVServiceEnable=false
    popConsumerKVServiceInit=false popConsumerKVServiceLog=false popInflightMessageThreshold=10000
    popLongPollingForceNotifyInterval=800 popPollingMapSize=100000 popReviveMaxAttemptTimes=16
    popReviveMaxReturnSizePerRead=16384 preferredLeader printChannelGroups=false printChannelGroupsMinNum=5
    processReplyMessageThreadPoolNums pullBatchMaxMessageCount=160 pullMessageThreadPoolNums
    pullThreadPoolQueueCapacity=100000 putConsumeQueueDataByFileChannel=true putMessageFutureThreadPoolNums
    putMessageTimeout=8000 putMsgIndexHightWater=600000 putThreadPoolQueueCapacity=10000
    queryMessageThreadPoolNums queryThreadPoolQueueCapacity=20000 readUnCommitted=false
    realTimePersistRocksDBConfig=true recheckReputOffsetFromCq=false recoverConcurrently=false
    recoverThreadPoolNums redeleteHangedFileInterval=120000 replicasPerDiskPartition=1
    replyThreadPoolQueueCapacity=10000 reviveAckWaitMs=180000 reviveInterval=1000 reviveMaxSlow=3
    reviveScanTime=10000 rocketmqHome rocksdbCQDoubleWriteEnable=false rocksdbCompressionType=lz4
    rocksdbFlushWalFrequency=1024 rocksdbWalFileRollingThreshold=1073741824 sampleCountThreshold=5000
    sampleSteps=32 scheduleAsyncDeliverMaxPendingLimit=2000 scheduleAsyncDeliverMaxResendNum2Blocked=3
    searchBcqByCacheEnable=true sendMessageThreadPoolNums sendThreadPoolQueueCapacity=10000
    serverAsyncSemaphoreValue=64 serverCallbackExecutorThreads=0 serverChannelMaxIdleTimeSeconds=120
    serverNettyWorkerGroupEnable=true serverOnewaySemaphoreValue=256 serverPooledByteBufAllocatorEnable=true
    serverSelectorThreads=3 serverSocketBacklog=1024 serverSocketRcvBufSize=0 serverSocketSndBufSize=0
    serverWorkerThreads=8 shutdownWaitTimeSeconds=30 skipPreOnline=false skipWhenCKRePutReachMaxTimes=false
    socksProxyConfig={} spinLockCollisionRetreatOptimalDegree=1000 splitMetadataSize splitRegistrationSize=800
    statRocksDBCQIntervalSec=10 storePathDLedgerCommitLog subscriptionExpiredTimeout=600000
    syncBrokerMemberGroupPeriod=1000 syncControllerMetadataPeriod=10000 syncMasterFlushOffsetWhenStartup=false
    timerCheckMetricsWhen=05 timerColdDataCheckIntervalMs=60000 timerCongestNumEachSlot=2147483647
    timerEnableCheckMetrics=true timerEnableDisruptor=false timerEnableRetryUntilSuccess=false
    timerFlushIntervalMs=1000 timerGetMessageThreadNum=3 timerInterceptDelayLevel=false
    timerMetricSmallThreshold=1000000 timerPrecisionMs=1000 timerProgressLogIntervalMs=10000
    timerPutMessageThreadNum=3 timerRollWindowSlot=172800 timerSkipUnknownError=false timerStopDequeue=false
    timerStopEnqueue=false timerWarmEnable=false topicQueueLockNum=32 tls.server.authClient=false
    tls.test.mode.enable=true transactionMetricFlushInterval=3000 transactionOpBatchInterval=3000
    transactionOpMsgMaxSize=4096 transferMsgByHeap=true travelCqFileNumWhenGetMessage=1
    updateNameServerAddrPeriod=120000 useABSLock=false useEpollNativeSelector=false usePIDColdCtrStrategy=true
    useReentrantLockWhenPutMessage=true useStaticSubscription=false waitTimeMillsInAckQueue=3000
    waitTimeMillsInAdminBrokerQueue=5000 waitTimeMillsInHeartbeatQueue=31000 waitTimeMillsInLitePullQueue=5000
    waitTimeMillsInPullQueue=5000 waitTimeMillsInSendQueue=200 waitTimeMillsInTransactionQueue=3000
    wakeCommitWhenPutMessage=true wakeFlushWhenPutMessage=false writeBufferHighWaterMark=0
    writeBufferLowWaterMark=0 writeWithoutMmap
    """
)

NAMESERVER_INERT: Final = _parse_inert(
    """
    clientRequestThreadPoolNums clientRequestThreadPoolQueueCapacity=50000 clusterTest=false
    controllerRequestThreadPoolQueueCapacity=50000 controllerThreadPoolNums=16
    controllerThreadPoolQueueCapacity=50000 controllerType=DLedger defaultThreadPoolNums
    defaultThreadPoolQueueCapacity=10000 electMasterMaxRetryCount=3 enableShutdownGracefully=false
    isProcessReadEvent=false jRaftControllerRPCAddr jRaftElectionTimeoutMs jRaftGroupId jRaftInitConf
    jRaftScanWaitTimeoutMs jRaftServerId jRaftSnapshotIntervalSecs mappedFileSize productEnvName=center
    rocketmqHome serverAsyncSemaphoreValue=64 serverCallbackExecutorThreads=0
    serverNettyWorkerGroupEnable=true serverOnewaySemaphoreValue=256 serverPooledByteBufAllocatorEnable=true
    serverSelectorThreads=3 serverSocketBacklog=1024 serverSocketRcvBufSize=0 serverSocketSndBufSize=0
    serverWorkerThreads=8 shutdownWaitTimeSeconds=30 tls.server.authClient=false tls.test.mode.enable=true
    unRegisterBrokerQueueCapacity=3000 useEpollNativeSelector=false writeBufferHighWaterMark=0
    writeBufferLowWaterMark=0
    """
)

CONTROLLER_INERT: Final = {**NAMESERVER_INERT, **_parse_inert("listenPort scanNotActiveBrokerInterval=5000")}
"""The keys without an effect at a controller, which listens on the port of its own entry in
controllerDLegerPeers.
"""

PROXY_INERT: Final = _parse_inert(
    """
    namesrvDomain proxyMode=CLUSTER brokerConfigPath
    remotingListenPort=8080 grpcBossLoopNum=1 grpcWorkerLoopNum grpcThreadPoolNums
    grpcThreadPoolQueueCapacity=100000 grpcMaxConcurrentCallsPerConnection=2147483647
    grpcServerPermitKeepAliveTimeMillis=30000 grpcServerPermitKeepAliveWithoutCalls=true
    grpcProducerThreadPoolNums grpcProducerThreadQueueCapacity=10000
    grpcConsumerThreadPoolNums grpcConsumerThreadQueueCapacity=10000 grpcRouteThreadPoolNums
    grpcRouteThreadQueueCapacity=10000 grpcClientManagerThreadPoolNums
    grpcClientManagerThreadQueueCapacity=10000 grpcTransactionThreadPoolNums
    grpcTransactionThreadQueueCapacity=10000 renewAheadTimeMillis=10000 renewSchedulePeriodMillis=5000
    maxRenewRetryTimes=3 invisibleTimeMillisWhenClear=1000 longPollingReserveTimeInMillis=100
    transactionHeartbeatPeriodSecond=20 transactionDataExpireMillis=30000 transactionDataMaxNum=15
    tlsCertWatchIntervalMs=3600000 sendLatencyEnable=false startDetectorEnable=false detectTimeout=200
    detectInterval=2000 enableBatchAck=false enableRemotingLocalProxyGrpc=true
    enableAclRpcHookForClusterMode=false traceOn=false returnHandleGroupThreadPoolNums=2 maxLiteTopicSize=64
    maxLiteRenewNumPerChannel=100 maxSyncLiteSubscriptionRate=5000 tls.test.mode.enable=true
    authenticationProvider authenticationMetadataProvider authorizationProvider authorizationMetadataProvider
    authenticationStrategy authorizationStrategy namesrvDomainSubgroup rocketmqMQClientNum
    channelExpiredInSeconds contextExpiredInSeconds regionId remotingAccessAddr
    enablePrintJstack heartbeatSyncerTopicName heartbeatSyncerTopicClusterName
    topicRouteServiceCacheExpiredSeconds topicRouteServiceCacheRefreshSeconds topicRouteServiceCacheMaxNum
    topicConfigCacheExpiredSeconds topicConfigCacheRefreshSeconds topicConfigCacheMaxNum
    subscriptionGroupConfigCacheExpiredSeconds subscriptionGroupConfigCacheRefreshSeconds
    subscriptionGroupConfigCacheMaxNum userCacheExpiredSeconds userCacheRefreshSeconds userCacheMaxNum
    aclCacheExpiredSeconds aclCacheRefreshSeconds aclCacheMaxNum
    """
)
