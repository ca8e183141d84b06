"""The settings of a broker, of access control, and of an elected group.

Each part is one frozen value with RocketMQ's defaults and with units in the names. A field with a `setting`
has its RocketMQ key, its default, and the kind of its values if the default does not show it; the key itself
is marked "ours" if RocketMQ lacks it. Other fields marked "ours" are bounds that RocketMQ leaves open.
The role (brokerRole) belongs to the store's options. `broker_id` repeats it here (0 master, above 0 slave),
and `Broker` rejects a pair that disagrees (spec replication 3).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from tandemmq.errors import ConfigError
from tandemmq.protocol import setting_kinds as kinds
from tandemmq.protocol.setting_kinds import check_ranges, setting
from tandemmq.protocol.signature import Credentials
from tandemmq.remoting.options import PLAIN, TlsOptions
from tandemmq.replication.core.options import ReplicationOptions, SetOptions
from tandemmq.runtime.descriptors import CONNECTIONS_MAX
from tandemmq.store.options import StoreOptions
from tandemmq.telemetry.export_options import TRACES_EXPORTER, ExportOptions, MetricsExporter
from tandemmq.units import INT32_MAX, INT64_MAX

PERMISSION_READ = 4
PERMISSION_WRITE = 2
PERMISSION_INHERIT = 1
PERMISSION_MAX = 7


class RequestModeName(Enum):
    """The default consumption mode of groups (defaultMessageRequestMode)."""

    PULL = "PULL"
    POP = "POP"


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerOptions(ExportOptions):
    """The settings of one broker; relations to the store's options are checked when the broker is built."""

    # Identity and addresses.
    cluster_name: str = setting("brokerClusterName", "DefaultCluster", kinds.NAME)
    broker_name: str = setting("brokerName", "broker-a", kinds.NAME)  # RocketMQ's default is the host's name
    broker_id: int = setting("brokerId", 0, kinds.whole(0))
    broker_permission: int = setting("brokerPermission", 6, kinds.whole(0, PERMISSION_MAX), live=True)
    listen_host: str = setting("bindAddress", "0.0.0.0", kinds.IP)
    listen_port: int = setting("listenPort", 10911, kinds.PORT)  # 0 picks a free one
    fast_listen: bool = setting("fastListen", True)  # the second listener at listenPort - 2
    # the address that clients connect to
    advertised_host: str = setting("brokerIP1", "127.0.0.1", kinds.HOST)
    store_ip: str = ""  # the numeric address of brokerIP1, for message ids; empty: brokerIP1 is numeric
    advertised_addresses: str = setting("advertisedAddresses", "", kinds.ADVERTISED, live=True)  # ours
    ha_advertised_host: str = setting("brokerIP2", "", kinds.HOST)  # empty: the same as advertised_host
    ha_listen_port: int = setting("haListenPort", 0, kinds.PORT)  # 0: listenPort + 1
    # empty: the address that the name server returns
    ha_master_address: str = setting("haMasterAddress", "", kinds.ADDRESS)
    # ours: checks for another master of the name
    refuse_second_master: bool = setting("refuseSecondMaster", True)
    # the master's address while no name server reports one
    ha_master_remoting_address: str = setting("haMasterRemotingAddress", "", kinds.ADDRESS)
    name_servers: tuple[str, ...] = setting("namesrvAddr", (), kinds.ADDRESSES)  # split at ';'
    # split at ';': only displayed, see ElectionOptions
    controllers: tuple[str, ...] = setting("controllerAddr", (), kinds.ADDRESSES)
    register_period_ms: int = setting("registerNameServerPeriod", 30_000)  # clamped to 10 s .. 60 s
    register_timeout_ms: int = setting("registerBrokerTimeoutMills", 24_000)

    # Metrics with RocketMQ's names.
    # per metric; RocketMQ's default is 50,000
    metrics_series_max: int = setting("metricsOtelCardinalityLimit", 2_000, kinds.clamped(1, 8_192))
    metrics_per_queue: bool = setting("metricsPerQueue", False)  # ours: lag by queue
    stats_metrics: bool = setting("enableStatsMetrics", True)
    request_metrics: bool = setting("enableRequestMetrics", True)
    connection_metrics: bool = setting("enableConnectionMetrics", True)
    lag_metrics: bool = setting("enableLagAndDlqMetrics", True)
    transaction_metrics: bool = setting("enableTransactionMetrics", True)
    store_metrics: bool = setting("enableMessageStoreMetrics", True)
    pop_metrics: bool = setting("enablePopMetrics", True)
    # times of requests; RocketMQ's default is true
    remoting_metrics: bool = setting("enableRemotingMetrics", False)

    # ours: spans of sends
    traces_exporter: MetricsExporter = setting("tracesExporterType", MetricsExporter.DISABLE, TRACES_EXPORTER)
    # ours; empty: metricsGrpcExporterTarget
    traces_target: str = setting("tracesExporterTarget", "", kinds.COLLECTOR)

    # Topics and groups.
    auto_create_topic: bool = setting("autoCreateTopicEnable", True, live=True)
    default_topic_queue_count: int = setting("defaultTopicQueueNums", 8, kinds.whole(1, 65536))
    cluster_topic_enable: bool = setting("clusterTopicEnable", True)
    broker_topic_enable: bool = setting("brokerTopicEnable", True)
    trace_topic_enable: bool = setting("traceTopicEnable", False)
    trace_topic_name: str = setting("msgTraceTopicName", "RMQ_SYS_TRACE_TOPIC", kinds.NAME)
    timer_wheel_enable: bool = setting("timerWheelEnable", True)
    timer_delay_s_max: int = setting("timerMaxDelaySec", 259_200, kinds.whole(1, 10**9))
    recall_enable: bool = setting("recallMessageEnable", False, live=True)
    validate_system_topic_when_update: bool = setting("validateSystemTopicWhenUpdateTopic", True, live=True)
    mixed_message_type_enable: bool = setting("enableMixedMessageType", False, live=True)
    auto_create_group: bool = setting("autoCreateSubscriptionGroup", True, live=True)
    create_system_groups: bool = setting("enableCreateSysGroup", True)
    # ours: created by use, per hour; 0: no bound
    created_per_address_max: int = setting("autoCreatePerAddressMax", 1_000, kinds.whole())
    topic_count_max: int = 100_000  # ours
    group_count_max: int = 100_000  # ours

    # Sends.
    region_id: str = setting("regionId", "DefaultRegion", kinds.TEXT)
    trace_on: bool = setting("traceOn", True)
    accept_sends_from_ms: int = setting("startAcceptSendRequestTimeStamp", 0, kinds.whole(0, INT64_MAX))
    reply_store_enable: bool = setting("storeReplyMessageEnable", True, live=True)

    # Transactions.
    transactions_refused: bool = setting("rejectTransactionMessage", False, live=True)
    # how long a half message is not checked
    transaction_timeout_ms: int = setting("transactionTimeOut", 6_000)
    transaction_check_period_ms: int = setting("transactionCheckInterval", 30_000)
    transaction_check_count_max: int = setting("transactionCheckMax", 15)

    # Pulls.
    property_filter_enable: bool = setting("enablePropertyFilter", False, live=True)
    slave_read_enable: bool = setting("slaveReadEnable", False)
    lite_pull_enable: bool = setting("litePullMessageEnable", True, live=True)
    reject_pull_consumers: bool = setting("rejectPullConsumerEnable", False, live=True)
    long_polling_enable: bool = setting("longPollingEnable", True, live=True)
    short_polling_ms: int = setting("shortPollingTimeMills", 1_000, live=True)
    long_poll_ms_max: int = 120_000  # ours: a client's suspendTimeoutMillis is limited to this
    connections_max: int = CONNECTIONS_MAX  # ours, over all ports; lower if the process has few descriptors
    # ours: of unfinished frames; at the bound connections are closed
    frame_bytes_held_max: int = setting("frameBytesHeldMax", 256 << 20, kinds.POSITIVE_LONG)
    # ours: at the bound a pull is answered at once instead of being held
    long_poll_count_max: int = setting("longPollCountMax", 100_000)
    long_poll_count_per_queue_max: int = 4_096  # ours, the same
    # ours: a larger maxMsgNums is reduced to this; transfer limits apply below it
    pull_message_count_max: int = 10_000

    # Pulls of old messages.
    cold_control_enable: bool = setting("coldDataFlowControlEnable", False, live=True)
    # per group within 5 s
    cold_bytes_per_group_max: int = setting(
        "cgColdReadThreshold", 3_145_728, kinds.whole(1, 2**53), live=True
    )
    # for all groups within 5 s
    cold_bytes_max: int = setting("globalColdReadThreshold", 104_857_600, kinds.whole(1, 2**53), live=True)

    # Pops.
    # at the bound a pop is answered POLLING_FULL
    pop_poll_count_per_group_max: int = setting("popPollingSize", 1_024)
    pop_poll_count_max: int = setting("maxPopPollingSize", 100_000)  # the same
    pop_lease_count_max: int = setting("popCkMaxBufferSize", 200_000)  # at the bound pops return no messages
    # percentage of pops that read the retry topic first
    pop_retry_percent: int = setting("popFromRetryProbability", 20, kinds.whole(0, 100), live=True)
    # the same, of pops by priority
    priority_retry_percent: int = setting(
        "popFromRetryProbabilityForPriority", 0, kinds.whole(0, 100), live=True
    )
    # pops read from the highest queue id down
    priority_order_asc: bool = setting("priorityOrderAsc", True, live=True)
    # topics of priorities always have them
    separate_retry_queues: bool = setting("useSeparateRetryQueue", False, live=True)
    pop_retry_v2: bool = setting("enableRetryTopicV2", False)
    pop_reads_retry_v1: bool = setting("retrieveMessageFromPopRetryTopicV1", True)
    pop_returns_retry_topic: bool = setting("popResponseReturnActualRetryTopic", False)
    pop_init_checks_memory: bool = setting("initPopOffsetByCheckMsgInMem", True)
    revive_queue_count: int = setting("reviveQueueNum", 8, kinds.whole(1, 512))
    order_info_flush_ms: int = 10_000  # RocketMQ's fixed period of saving consumerOrderInfo.json

    # Assignment.
    server_assignment_enable: bool = setting("serverLoadBalancerEnable", True)
    default_request_mode: RequestModeName = setting("defaultMessageRequestMode", RequestModeName.PULL)
    default_pop_share_count: int = setting("defaultPopShareQueueNum", -1, kinds.whole(-(2**31), INT32_MAX))

    # Offsets.
    consumer_offset_flush_ms: int = setting("flushConsumerOffsetInterval", 5_000)
    consumer_offset_version_step: int = setting("consumerOffsetUpdateVersionStep", 500)
    delay_offset_flush_ms: int = setting("flushDelayOffsetInterval", 10_000)
    delay_offset_version_step: int = setting("delayOffsetUpdateVersionStep", 200)
    server_side_reset: bool = setting("useServerSideResetOffset", True, live=True)
    offset_key_count_max: int = 1_000_000  # ours: distinct topic@group keys

    # Clients.
    notify_consumer_ids_changed: bool = setting("notifyConsumerIdsChangedEnable", True, live=True)
    notify_at_once: bool = setting("realTimeNotifyConsumerChange", True)
    notify_period_ms: int = 15_000  # the period of notifications when notify_at_once is false
    channel_expired_ms: int = setting("channelExpiredTimeout", 120_000, live=True)
    client_scan_period_ms: int = 10_000  # RocketMQ's fixed scan period
    groups_per_client_max: int = 1_024  # ours
    subscriptions_per_group_max: int = 4_096  # ours
    queue_lock_expired_ms: int = 60_000  # fixed in RocketMQ
    # brokerConfigPath: the broker's configuration file, which it keeps up to date
    config_path: Path | None = None
    config_black_list: tuple[str, ...] = setting(
        "configBlackList", ("configBlackList", "brokerConfigPath"), kinds.LIST
    )

    def __post_init__(self) -> None:
        for name in ("cluster_name", "broker_name", "advertised_host", "region_id"):
            if not getattr(self, name):
                raise ConfigError(f"{name}: must not be empty")
        check_ranges(self)
        if self.fast_listen and self.listen_port in (1, 2):
            raise ConfigError(
                f"listen_port: {self.listen_port} leaves no port for the fast listener at listenPort - 2"
            )

    @property
    def is_slave(self) -> bool:
        return self.broker_id > 0

    @property
    def is_readable(self) -> bool:
        return bool(self.broker_permission & PERMISSION_READ)

    @property
    def is_writeable(self) -> bool:
        return bool(self.broker_permission & PERMISSION_WRITE)

    @property
    def register_period_clamped_ms(self) -> int:
        """The registration period in milliseconds; RocketMQ keeps it within 10 s and 60 s (spec semantics
        16.3).
        """
        return min(max(self.register_period_ms, 10_000), 60_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessOptions:
    """The settings of access control. If both kinds of rules are on, a request must pass both."""

    acl_enable: bool = setting("aclEnable", False)  # the rules of plain_acl.yml
    # ours: holds plain_acl.yml, acl/*.yml and tools.yml
    acl_directory: Path = setting("aclConfigDir", Path("conf"), kinds.DIRECTORY)
    authentication_enabled: bool = setting("authenticationEnabled", False)
    authorization_enabled: bool = setting("authorizationEnabled", False)
    # request codes
    authentication_white_codes: frozenset[int] = setting("authenticationWhitelist", frozenset(), kinds.CODES)
    authorization_white_codes: frozenset[int] = setting("authorizationWhitelist", frozenset(), kinds.CODES)
    # a super user, created if missing
    first_user: Credentials | None = setting("initAuthenticationUser", None, kinds.USER)
    inner_credentials: Credentials | None = setting(
        "innerClientAuthenticationCredentials", None, kinds.CREDENTIALS
    )
    # ours: accepts the signatures of RocketMQ's own clients
    weak_signatures: bool = setting("weakSignatureEnable", True)

    def __post_init__(self) -> None:
        if self.authorization_enabled and not self.authentication_enabled:
            raise ConfigError(
                "authorization_enabled needs authentication_enabled: else anybody could take any name"
            )

    @property
    def is_on(self) -> bool:
        return self.acl_enable or self.authentication_enabled


OPEN = AccessOptions()
"""The settings without access control: every client may do everything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectionOptions(SetOptions):
    """The settings of a broker of an elected group (spec controller 8). They apply with
    enableControllerMode=true only; brokerId and brokerRole are ignored then.
    """

    is_enabled: bool = setting("enableControllerMode", False)
    controllers: tuple[str, ...] = setting("controllerAddr", (), kinds.ADDRESSES)  # split at ';'
    identity_path: Path | None = setting("storePathBrokerIdentity", None, kinds.FILE)
    # None: epochFileCheckpoint, in the same directory
    epoch_path: Path | None = setting("storePathEpochFile", None, kinds.FILE)
    # RocketMQ: 1000, also used with its controllers
    heartbeat_ms: int = setting("brokerHeartbeatInterval", 300)
    heartbeat_timeout_ms: int = setting("sendHeartbeatTimeoutMillis", 1_000)
    silence_ms_max: int = setting("controllerHeartBeatTimeoutMills", 1_500)  # RocketMQ: 10000
    poll_ms: int = setting("syncBrokerMetadataPeriod", 1_000)  # RocketMQ: 5000
    # of equal candidates the one with the smaller number is elected
    priority: int = setting("brokerElectionPriority", INT32_MAX, kinds.whole(-(2**31), INT32_MAX))
    # ours: how long a former master forwards sends
    linger_ms: int = setting("handoverLingerMillis", 60_000, kinds.whole(0))
    hands_over_at_stop: bool = setting("handoverAtStop", True)  # ours: a stopped master hands over first
    # ours: how long a stopped master that handed over forwards sends
    stop_linger_ms: int = setting("handoverStopLingerMillis", 0, kinds.whole(0))
    # ours: registers anew if the controllers forgot this broker
    reapplies_id: bool = setting("reapplyBrokerId", False)
    # ours: the same as the controllers'
    shared_secret: str = setting("controllerSharedSecret", "", kinds.SECRET)

    def __post_init__(self) -> None:
        if not self.is_enabled:
            return
        if not self.controllers:
            raise ConfigError("controllerAddr: must not be empty in controller mode")
        check_ranges(self)
        if self.silence_ms_max < 4 * self.heartbeat_ms:
            raise ConfigError(
                f"silence_ms_max: {self.silence_ms_max} must be at least 4 heartbeats"
                f" of {self.heartbeat_ms} ms, or one that is late ends a master"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class InnerProxyOptions:
    """The settings of a gRPC proxy in the process of a broker. The command starts it, not the broker."""

    is_enabled: bool = setting("enableProxy", False)  # ours
    port: int = setting("grpcServerPort", 8081, kinds.PORT)


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig:
    """All options of a broker. `inert` contains the given keys that have no effect here, `notes` the remarks
    on others.
    """

    broker: BrokerOptions
    store: StoreOptions
    replication: ReplicationOptions = field(default_factory=ReplicationOptions)
    election: ElectionOptions = field(default_factory=ElectionOptions)
    access: AccessOptions = OPEN
    tls: TlsOptions = PLAIN
    proxy: InnerProxyOptions = field(default_factory=InnerProxyOptions)
    inert: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
