"""The settings of a proxy, with RocketMQ's defaults and its key beside each field (spec proxy 9)."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Final

from tandemmq.errors import ConfigError
from tandemmq.protocol import setting_kinds as kinds
from tandemmq.protocol.setting_kinds import setting
from tandemmq.protocol.signature import Credentials
from tandemmq.protocol.topic_names import DELAY_LEVELS_MS
from tandemmq.remoting.options import PLAIN, TlsOptions
from tandemmq.telemetry.export_options import ExportOptions

STORE_PATH: Final = Path(os.path.expanduser("~")) / "tandemmq-proxy"
NAME_SERVERS: Final = "127.0.0.1:9876"
POP_COUNT_MAX: Final = 32
"""The most messages that brokers return for one pop (spec semantics 14)."""
WORKERS_MAX: Final = 64


class MetricCollectorMode(Enum):
    """The metrics of clients: not exported, or exported to `metricCollectorAddress` (spec proxy 4.6)."""

    OFF = "off"
    ON = "on"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyOptions(ExportOptions):
    """Settings of one proxy (spec proxy 9)."""

    listen_host: str = setting("bindAddress", "0.0.0.0", kinds.IP)  # ours
    listen_port: int = setting("grpcServerPort", 8081, kinds.PORT)
    """The port to listen on; 0 picks a free one."""
    worker_count: int = setting("proxyWorkers", 1)  # ours
    """The processes that share the port."""
    advertised: str = setting("proxyAdvertise", "", kinds.ADDRESS)  # ours
    """`host:port` for clients whose route request names no endpoints; empty: `local_host` and the port."""
    balancers: tuple[str, ...] = setting("proxyProtocolAddresses", (), kinds.IPS)  # ours
    """The addresses of load balancers whose connections may begin with the PROXY protocol."""
    echoes_port: bool = setting("useEndpointPortFromRequest", True)
    """True if routes repeat the port of the request's endpoints; RocketMQ: False, its own port."""
    local_host: str = setting("localServeAddr", "127.0.0.1", kinds.TEXT)
    """The address of this machine, for `advertised` and for the certificate."""
    name_servers: str = setting("namesrvAddr", NAME_SERVERS, kinds.NAME_SERVERS)
    cluster: str = setting("rocketMQClusterName", "DefaultCluster", kinds.TEXT)
    store_path: Path = setting("proxyStorePath", STORE_PATH, kinds.DIRECTORY)  # ours
    """The folder of the certificate that the proxy makes for itself."""
    makes_certificate: bool = setting("tlsTestModeEnable", True)
    """True if a proxy without a certificate makes one for itself."""
    cluster_label: str = setting("proxyClusterName", "DefaultCluster", kinds.TEXT)
    name: str = setting("proxyName", "proxy", kinds.TEXT)
    """The names of the proxy in its metrics. RocketMQ's default for `name`, and that of `config`, is the name
    of the host.
    """
    # Sends (spec proxy 5.3); 0 for the body, the group, the delay or the recovery time means no limit
    body_bytes_max: int = setting("maxMessageSize", 4_194_304, kinds.whole(0))
    """The bytes of a body, before and after decompression, and of all messages of one request together."""
    refuses_empty_bodies: bool = setting("enableMessageBodyEmptyCheck", True)
    property_bytes_max: int = setting("maxUserPropertySize", 16_384)
    """The bytes of names and values of user properties, the tag and the keys together, as UTF-8; also of the
    message id, the trace context and the born host, each alone.
    """
    property_count_max: int = setting("userPropertyMaxNum", 128)
    message_group_bytes_max: int = setting("maxMessageGroupSize", 64, kinds.whole(0))
    delay_ms_max: int = setting("maxDelayTimeMills", 86_400_000, kinds.whole(0))
    recovery_s_max: int = setting("maxTransactionRecoverySecond", 3_600, kinds.whole(0))
    uses_delay_levels: bool = setting("useDelayLevel", False)
    """True if a message with a delivery time also gets the level with the next longer delay."""
    delay_levels_ms: tuple[int, ...] = setting("messageDelayLevel", DELAY_LEVELS_MS, kinds.DELAY_LEVELS)
    checks_message_type: bool = setting("enableTopicMessageTypeCheck", True)
    # Receives (spec proxy 5.9, 5.12)
    renews_leases: bool = setting("enableProxyAutoRenew", True)
    invisible_ms: int = setting("defaultInvisibleTimeMills", 60_000)
    """The invisible time of push consumers' messages, which the proxy renews."""
    invisible_ms_min: int = setting("minInvisibleTimeMillsForRecv", 10_000)
    invisible_ms_max: int = setting("maxInvisibleTimeMills", 43_200_000)
    renew_ms_max: int = setting("renewMaxTimeMillis", 10_800_000)
    """The time after which a message is no longer renewed and delivered again."""
    poll_ms_min: int = setting("grpcClientConsumerMinLongPollingTimeoutMillis", 5_000)
    poll_ms_max: int = setting("grpcClientConsumerMaxLongPollingTimeoutMillis", 20_000)
    batch_max: int = setting("grpcClientConsumerLongPollingBatchSize", 32)
    # Settings for clients (spec proxy 4.2)
    producer_attempts: int = setting("grpcClientProducerMaxAttempts", 3)
    producer_backoff_ms: int = setting("grpcClientProducerBackoffInitialMillis", 10)
    producer_backoff_ms_max: int = setting("grpcClientProducerBackoffMaxMillis", 1_000)
    producer_backoff_factor: int = setting("grpcClientProducerBackoffMultiplier", 2)
    metric_collector_mode: MetricCollectorMode = setting("metricCollectorMode", MetricCollectorMode.OFF)
    metric_collector: str = setting("metricCollectorAddress", "", kinds.ADDRESS)
    """`host:port` to which clients send their metrics (OTLP over gRPC)."""
    client_expiry_ms: int = setting("channelExpiredTimeout", 120_000)
    relay_s: int = setting("grpcProxyRelayRequestTimeoutInSeconds", 5)
    # Access control (spec proxy 8)
    acl_enable: bool = setting("aclEnable", False)
    """True if the rules of RocketMQ 4.x apply, from files in `acl_directory`."""
    acl_directory: Path = setting("aclConfigDir", Path("conf"), kinds.DIRECTORY)  # ours
    authentication_enabled: bool = setting("authenticationEnabled", False)
    authorization_enabled: bool = setting("authorizationEnabled", False)
    authentication_white_list: str = setting("authenticationWhitelist", "", kinds.OPTIONAL_TEXT)
    """The full names of requests that need no authentication, separated by commas."""
    authorization_white_list: str = setting("authorizationWhitelist", "", kinds.OPTIONAL_TEXT)
    # The transport (spec proxy 1.3)
    message_bytes_max: int = setting("grpcMaxInboundMessageSize", 136_314_880)
    idle_close_ms: int = setting("grpcClientIdleTimeMills", 120_000)
    drain_s: int = setting("grpcShutdownTimeSeconds", 30)
    """The time for calls in flight to end after the proxy got the signal to stop."""

    def __post_init__(self) -> None:
        if not 0 <= self.listen_port <= 65535:
            raise ConfigError(f"listen_port must be within 0..65535, not {self.listen_port}")
        if not 1 <= self.worker_count <= WORKERS_MAX:
            raise ConfigError(f"worker_count={self.worker_count} must be within 1..{WORKERS_MAX}")
        if self.metrics_port + self.worker_count - 1 > 65535:
            raise ConfigError(
                f"metrics_port={self.metrics_port} must leave a port for each of {self.worker_count} workers"
            )
        if self.invisible_ms_min > self.invisible_ms_max:
            raise ConfigError(
                f"invisible_ms_min={self.invisible_ms_min} must not be above"
                f" invisible_ms_max={self.invisible_ms_max}"
            )
        if not 1 <= self.batch_max <= POP_COUNT_MAX:
            raise ConfigError(
                f"batch_max={self.batch_max} must be within 1..{POP_COUNT_MAX}, the most messages of one pop"
            )
        if self.poll_ms_min > self.poll_ms_max:
            raise ConfigError(
                f"poll_ms_min={self.poll_ms_min} must not be above poll_ms_max={self.poll_ms_max}"
            )
        if self.authorization_enabled and not self.authentication_enabled:
            raise ConfigError("authorizationEnabled needs authenticationEnabled: else any name could be used")
        if self.metric_collector_mode is MetricCollectorMode.ON and not self.metric_collector:
            raise ConfigError("metric_collector_mode=on needs metric_collector=host:port")

    def of_worker(self, number: int) -> ProxyOptions:
        """Returns the options of a worker, counted from 1: each has a port of its own for its metrics."""
        port = self.metrics_port and self.metrics_port + number - 1
        return replace(self, metrics_port=port, worker_count=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyConfig:
    """All options of a proxy. `credentials` sign its requests to brokers; `inert` contains the given keys
    that have no effect here.
    """

    options: ProxyOptions
    tls: TlsOptions = PLAIN
    credentials: Credentials | None = None
    inert: tuple[str, ...] = ()
