"""The settings of a broker, of access control, and of an elected group.

Each part is one frozen value with RocketMQ's defaults and with units in the names; the comment at each field
names its RocketMQ key. Fields marked "ours" have no RocketMQ key: they are bounds that RocketMQ leaves open.
The role (brokerRole) belongs to the store's options. `broker_id` repeats it here (0 master, above 0 slave),
and `Broker` rejects a pair that disagrees (spec replication 3).
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from enum import Enum
from pathlib import Path

from tandemmq.errors import ConfigError
from tandemmq.protocol.signature import Credentials
from tandemmq.remoting.options import PLAIN, TlsOptions
from tandemmq.replication.core.options import ReplicationOptions, SetOptions
from tandemmq.runtime.descriptors import CONNECTIONS_MAX
from tandemmq.store.options import StoreOptions
from tandemmq.telemetry.export_options import ExportOptions, MetricsExporter

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
    cluster_name: str = "DefaultCluster"  # brokerClusterName
    broker_name: str = "broker-a"  # brokerName; RocketMQ's default is the host's name
    broker_id: int = 0  # brokerId
    broker_permission: int = 6  # brokerPermission
    listen_host: str = "0.0.0.0"  # bindAddress
    listen_port: int = 10911  # listenPort; 0 picks a free one
    fast_listen: bool = True  # fastListen: the second listener at listenPort - 2
    advertised_host: str = "127.0.0.1"  # brokerIP1: the address that clients connect to
    store_ip: str = ""  # the numeric address of brokerIP1, for message ids; empty: brokerIP1 is numeric
    advertised_addresses: str = ""  # ours, advertisedAddresses: NETWORK=host:port;NETWORK=host:port
    ha_advertised_host: str = ""  # brokerIP2; empty: the same as advertised_host
    ha_listen_port: int = 0  # haListenPort; 0: listenPort + 1
    ha_master_address: str = ""  # haMasterAddress; empty: the address that the name server returns
    refuse_second_master: bool = True  # ours, refuseSecondMaster: checks for another master of the name
    # haMasterRemotingAddress: the master's address while no name server reports one
    ha_master_remoting_address: str = ""
    name_servers: tuple[str, ...] = ()  # namesrvAddr, split at ';'
    controllers: tuple[str, ...] = ()  # controllerAddr, split at ';': only displayed, see ElectionOptions
    register_period_ms: int = 30_000  # registerNameServerPeriod, clamped to 10 s .. 60 s
    register_timeout_ms: int = 24_000  # registerBrokerTimeoutMills

    # Metrics with RocketMQ's names.
    metrics_series_max: int = 2_000  # metricsOtelCardinalityLimit: per metric; RocketMQ's default is 50,000
    metrics_per_queue: bool = False  # ours, metricsPerQueue: lag by queue
    stats_metrics: bool = True  # enableStatsMetrics
    request_metrics: bool = True  # enableRequestMetrics
    connection_metrics: bool = True  # enableConnectionMetrics
    lag_metrics: bool = True  # enableLagAndDlqMetrics
    transaction_metrics: bool = True  # enableTransactionMetrics
    store_metrics: bool = True  # enableMessageStoreMetrics
    pop_metrics: bool = True  # enablePopMetrics
    remoting_metrics: bool = False  # enableRemotingMetrics: times of requests; RocketMQ's default is true

    traces_exporter: MetricsExporter = MetricsExporter.DISABLE  # ours, tracesExporterType: spans of sends
    traces_target: str = ""  # ours, tracesExporterTarget; empty: metricsGrpcExporterTarget

    # Topics and groups.
    auto_create_topic: bool = True  # autoCreateTopicEnable
    default_topic_queue_count: int = 8  # defaultTopicQueueNums
    cluster_topic_enable: bool = True  # clusterTopicEnable
    broker_topic_enable: bool = True  # brokerTopicEnable
    trace_topic_enable: bool = False  # traceTopicEnable
    trace_topic_name: str = "RMQ_SYS_TRACE_TOPIC"  # msgTraceTopicName
    timer_wheel_enable: bool = True  # timerWheelEnable
    timer_delay_s_max: int = 259_200  # timerMaxDelaySec
    recall_enable: bool = False  # recallMessageEnable
    validate_system_topic_when_update: bool = True  # validateSystemTopicWhenUpdateTopic
    mixed_message_type_enable: bool = False  # enableMixedMessageType
    auto_create_group: bool = True  # autoCreateSubscriptionGroup
    create_system_groups: bool = True  # enableCreateSysGroup
    # autoCreatePerAddressMax (ours): created by use, per hour; 0: no bound
    created_per_address_max: int = 1_000
    topic_count_max: int = 100_000  # ours
    group_count_max: int = 100_000  # ours

    # Sends.
    region_id: str = "DefaultRegion"  # regionId
    trace_on: bool = True  # traceOn
    accept_sends_from_ms: int = 0  # startAcceptSendRequestTimeStamp
    reply_store_enable: bool = True  # storeReplyMessageEnable

    # Transactions.
    transactions_refused: bool = False  # rejectTransactionMessage
    transaction_timeout_ms: int = 6_000  # transactionTimeOut: how long a half message is not checked
    transaction_check_period_ms: int = 30_000  # transactionCheckInterval
    transaction_check_count_max: int = 15  # transactionCheckMax

    # Pulls.
    property_filter_enable: bool = False  # enablePropertyFilter
    slave_read_enable: bool = False  # slaveReadEnable
    lite_pull_enable: bool = True  # litePullMessageEnable
    reject_pull_consumers: bool = False  # rejectPullConsumerEnable
    long_polling_enable: bool = True  # longPollingEnable
    short_polling_ms: int = 1_000  # shortPollingTimeMills
    long_poll_ms_max: int = 120_000  # ours: a client's suspendTimeoutMillis is limited to this
    connections_max: int = CONNECTIONS_MAX  # ours, over all ports; lower if the process has few descriptors
    frame_bytes_held_max: int = 256 << 20  # ours: of unfinished frames; at the bound connections are closed
    long_poll_count_max: int = 100_000  # ours: at the bound a pull is answered at once instead of being held
    long_poll_count_per_queue_max: int = 4_096  # ours, the same
    # ours: a larger maxMsgNums is reduced to this; transfer limits apply below it
    pull_message_count_max: int = 10_000

    # Pulls of old messages.
    cold_control_enable: bool = False  # coldDataFlowControlEnable
    cold_bytes_per_group_max: int = 3_145_728  # cgColdReadThreshold: per group within 5 s
    cold_bytes_max: int = 104_857_600  # globalColdReadThreshold: for all groups within 5 s

    # Pops.
    pop_poll_count_per_group_max: int = 1_024  # popPollingSize: at the bound a pop is answered POLLING_FULL
    pop_poll_count_max: int = 100_000  # maxPopPollingSize, the same
    pop_lease_count_max: int = 200_000  # popCkMaxBufferSize: at the bound pops return no messages
    pop_retry_percent: int = 20  # popFromRetryProbability: percentage of pops that read the retry topic first
    priority_retry_percent: int = 0  # popFromRetryProbabilityForPriority: the same, of pops by priority
    priority_order_asc: bool = True  # priorityOrderAsc: pops read from the highest queue id down
    separate_retry_queues: bool = False  # useSeparateRetryQueue; topics of priorities always have them
    pop_retry_v2: bool = False  # enableRetryTopicV2
    pop_reads_retry_v1: bool = True  # retrieveMessageFromPopRetryTopicV1
    pop_returns_retry_topic: bool = False  # popResponseReturnActualRetryTopic
    pop_init_checks_memory: bool = True  # initPopOffsetByCheckMsgInMem
    revive_queue_count: int = 8  # reviveQueueNum
    order_info_flush_ms: int = 10_000  # RocketMQ's fixed period of saving consumerOrderInfo.json

    # Assignment.
    server_assignment_enable: bool = True  # serverLoadBalancerEnable
    default_request_mode: RequestModeName = RequestModeName.PULL  # defaultMessageRequestMode
    default_pop_share_count: int = -1  # defaultPopShareQueueNum

    # Offsets.
    consumer_offset_flush_ms: int = 5_000  # flushConsumerOffsetInterval
    consumer_offset_version_step: int = 500  # consumerOffsetUpdateVersionStep
    delay_offset_flush_ms: int = 10_000  # flushDelayOffsetInterval
    delay_offset_version_step: int = 200  # delayOffsetUpdateVersionStep
    server_side_reset: bool = True  # useServerSideResetOffset
    offset_key_count_max: int = 1_000_000  # ours: distinct topic@group keys

    # Clients.
    notify_consumer_ids_changed: bool = True  # notifyConsumerIdsChangedEnable
    notify_at_once: bool = True  # realTimeNotifyConsumerChange
    notify_period_ms: int = 15_000  # the period of notifications when notify_at_once is false
    channel_expired_ms: int = 120_000  # channelExpiredTimeout
    client_scan_period_ms: int = 10_000  # RocketMQ's fixed scan period
    groups_per_client_max: int = 1_024  # ours
    subscriptions_per_group_max: int = 4_096  # ours
    queue_lock_expired_ms: int = 60_000  # fixed in RocketMQ
    # brokerConfigPath: the broker's configuration file, which it keeps up to date
    config_path: Path | None = None
    config_black_list: tuple[str, ...] = ("configBlackList", "brokerConfigPath")  # configBlackList

    def __post_init__(self) -> None:
        for name in ("cluster_name", "broker_name", "advertised_host", "region_id"):
            if not getattr(self, name):
                raise ConfigError(f"{name}: must not be empty")
        for one in fields(self):
            if one.type == "int":
                _check_range(one.name, getattr(self, one.name), *_RANGES.get(one.name, (1, 2**53)))
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


_RANGES = {
    "broker_id": (0, 2**31 - 1),
    "broker_permission": (0, PERMISSION_MAX),
    "listen_port": (0, 65_535),
    "ha_listen_port": (0, 65_535),
    "metrics_port": (0, 65_535),
    "created_per_address_max": (-(2**63), 2**63),
    "accept_sends_from_ms": (-(2**63), 2**63),
    "pop_retry_percent": (0, 100),
    "priority_retry_percent": (0, 100),
    "revive_queue_count": (1, 512),
    "default_pop_share_count": (-(2**31), 2**31 - 1),
}
"""The allowed values of whole numbers by field; those of all others are 1 to 2**53."""


def _check_range(name: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise ConfigError(f"{name}: {value} is outside {low}..{high}")


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessOptions:
    """The settings of access control. If both kinds of rules are on, a request must pass both."""

    acl_enable: bool = False  # aclEnable: the rules of plain_acl.yml
    acl_directory: Path = Path("conf")  # aclConfigDir (ours): holds plain_acl.yml, acl/*.yml and tools.yml
    authentication_enabled: bool = False  # authenticationEnabled
    authorization_enabled: bool = False  # authorizationEnabled
    authentication_white_codes: frozenset[int] = frozenset()  # authenticationWhitelist: request codes
    authorization_white_codes: frozenset[int] = frozenset()  # authorizationWhitelist
    first_user: Credentials | None = None  # initAuthenticationUser: a super user, created if missing
    inner_credentials: Credentials | None = None  # innerClientAuthenticationCredentials
    # weakSignatureEnable (ours): accepts the signatures of RocketMQ's own clients
    weak_signatures: bool = True

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

    is_enabled: bool = False  # enableControllerMode
    controllers: tuple[str, ...] = ()  # controllerAddr, split at ';'
    identity_path: Path | None = (
        None  # storePathBrokerIdentity; None: brokerIdentity in the store's directory
    )
    epoch_path: Path | None = None  # storePathEpochFile; None: epochFileCheckpoint, in the same directory
    heartbeat_ms: int = 300  # brokerHeartbeatInterval; RocketMQ: 1000, also used with its controllers
    heartbeat_timeout_ms: int = 1_000  # sendHeartbeatTimeoutMillis
    silence_ms_max: int = 1_500  # controllerHeartBeatTimeoutMills; RocketMQ: 10000
    poll_ms: int = 1_000  # syncBrokerMetadataPeriod; RocketMQ: 5000
    # brokerElectionPriority: of equal candidates the one with the smaller number is elected
    priority: int = 2**31 - 1
    linger_ms: int = 60_000  # handoverLingerMillis (ours): how long a former master forwards sends
    hands_over_at_stop: bool = True  # handoverAtStop (ours): a stopped master hands over first
    # handoverStopLingerMillis (ours): how long a stopped master that handed over forwards sends
    stop_linger_ms: int = 0
    reapplies_id: bool = False  # ours, reapplyBrokerId: registers anew if the controllers forgot this broker
    # controllerSharedSecret (ours): the same as the controllers'
    shared_secret: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        if not self.is_enabled:
            return
        if not self.controllers:
            raise ConfigError("controllerAddr: must not be empty in controller mode")
        for name in (
            "heartbeat_ms",
            "heartbeat_timeout_ms",
            "silence_ms_max",
            "poll_ms",
            "lag_ms_max",
            "join_ms_max",
            "copy_count_min",
        ):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}: {getattr(self, name)} must be at least 1")
        for name in ("linger_ms", "stop_linger_ms"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name}: {getattr(self, name)} must be at least 0")
        if self.silence_ms_max < 4 * self.heartbeat_ms:
            raise ConfigError(
                f"silence_ms_max: {self.silence_ms_max} must be at least 4 heartbeats"
                f" of {self.heartbeat_ms} ms, or one that is late ends a master"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class InnerProxyOptions:
    """The settings of a gRPC proxy in the process of a broker. The command starts it, not the broker."""

    is_enabled: bool = False  # enableProxy (ours)
    port: int = 8081  # grpcServerPort


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
