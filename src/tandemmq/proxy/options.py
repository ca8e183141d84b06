"""The settings of a proxy, with RocketMQ's defaults and its key beside each field (spec proxy 9)."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import Final

from tandemmq.errors import ConfigError
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
    """Settings of one proxy (spec proxy 9). `remoting.settings.option_keys` maps keys to fields."""

    listen_host: str = field(default="0.0.0.0", metadata={"key": "bindAddress"})  # ours
    listen_port: int = field(default=8081, metadata={"key": "grpcServerPort"})
    """The port to listen on; 0 picks a free one."""
    worker_count: int = field(default=1, metadata={"key": "proxyWorkers"})  # ours
    """The processes that share the port."""
    advertised: str = field(default="", metadata={"key": "proxyAdvertise"})  # ours
    """`host:port` for clients whose route request names no endpoints; empty: `local_host` and the port."""
    balancers: tuple[str, ...] = field(default=(), metadata={"key": "proxyProtocolAddresses"})  # ours
    """The addresses of load balancers whose connections may begin with the PROXY protocol."""
    echoes_port: bool = field(default=True, metadata={"key": "useEndpointPortFromRequest"})
    """True if routes repeat the port of the request's endpoints; RocketMQ: False, its own port."""
    local_host: str = field(default="127.0.0.1", metadata={"key": "localServeAddr"})
    """The address of this machine, for `advertised` and for the certificate."""
    name_servers: str = field(default=NAME_SERVERS, metadata={"key": "namesrvAddr"})
    cluster: str = field(default="DefaultCluster", metadata={"key": "rocketMQClusterName"})
    store_path: Path = field(default=STORE_PATH, metadata={"key": "proxyStorePath"})  # ours
    """The folder of the certificate that the proxy makes for itself."""
    makes_certificate: bool = field(default=True, metadata={"key": "tlsTestModeEnable"})
    """True if a proxy without a certificate makes one for itself."""
    cluster_label: str = field(default="DefaultCluster", metadata={"key": "proxyClusterName"})
    name: str = field(default="proxy", metadata={"key": "proxyName"})
    """The names of the proxy in its metrics. RocketMQ's default for `name`, and that of `config`, is the name
    of the host.
    """
    # Sends (spec proxy 5.3); 0 for the body, the group, the delay or the recovery time means no limit
    body_bytes_max: int = field(default=4_194_304, metadata={"key": "maxMessageSize"})
    """The bytes of a body, before and after decompression, and of all messages of one request together."""
    refuses_empty_bodies: bool = field(default=True, metadata={"key": "enableMessageBodyEmptyCheck"})
    property_bytes_max: int = field(default=16_384, metadata={"key": "maxUserPropertySize"})
    """The bytes of names and values of user properties, the tag and the keys together, as UTF-8; also of the
    message id, the trace context and the born host, each alone.
    """
    property_count_max: int = field(default=128, metadata={"key": "userPropertyMaxNum"})
    message_group_bytes_max: int = field(default=64, metadata={"key": "maxMessageGroupSize"})
    delay_ms_max: int = field(default=86_400_000, metadata={"key": "maxDelayTimeMills"})
    recovery_s_max: int = field(default=3_600, metadata={"key": "maxTransactionRecoverySecond"})
    uses_delay_levels: bool = field(default=False, metadata={"key": "useDelayLevel"})
    """True if a message with a delivery time also gets the level with the next longer delay."""
    delay_levels_ms: tuple[int, ...] = field(default=DELAY_LEVELS_MS, metadata={"key": "messageDelayLevel"})
    checks_message_type: bool = field(default=True, metadata={"key": "enableTopicMessageTypeCheck"})
    # Receives (spec proxy 5.9, 5.12)
    renews_leases: bool = field(default=True, metadata={"key": "enableProxyAutoRenew"})
    invisible_ms: int = field(default=60_000, metadata={"key": "defaultInvisibleTimeMills"})
    """The invisible time of push consumers' messages, which the proxy renews."""
    invisible_ms_min: int = field(default=10_000, metadata={"key": "minInvisibleTimeMillsForRecv"})
    invisible_ms_max: int = field(default=43_200_000, metadata={"key": "maxInvisibleTimeMills"})
    renew_ms_max: int = field(default=10_800_000, metadata={"key": "renewMaxTimeMillis"})
    """The time after which a message is no longer renewed and delivered again."""
    poll_ms_min: int = field(default=5_000, metadata={"key": "grpcClientConsumerMinLongPollingTimeoutMillis"})
    poll_ms_max: int = field(
        default=20_000, metadata={"key": "grpcClientConsumerMaxLongPollingTimeoutMillis"}
    )
    batch_max: int = field(default=32, metadata={"key": "grpcClientConsumerLongPollingBatchSize"})
    # Settings for clients (spec proxy 4.2)
    producer_attempts: int = field(default=3, metadata={"key": "grpcClientProducerMaxAttempts"})
    producer_backoff_ms: int = field(default=10, metadata={"key": "grpcClientProducerBackoffInitialMillis"})
    producer_backoff_ms_max: int = field(
        default=1_000, metadata={"key": "grpcClientProducerBackoffMaxMillis"}
    )
    producer_backoff_factor: int = field(default=2, metadata={"key": "grpcClientProducerBackoffMultiplier"})
    metric_collector_mode: MetricCollectorMode = field(
        default=MetricCollectorMode.OFF, metadata={"key": "metricCollectorMode"}
    )
    metric_collector: str = field(default="", metadata={"key": "metricCollectorAddress"})
    """`host:port` to which clients send their metrics (OTLP over gRPC)."""
    client_expiry_ms: int = field(default=120_000, metadata={"key": "channelExpiredTimeout"})
    relay_s: int = field(default=5, metadata={"key": "grpcProxyRelayRequestTimeoutInSeconds"})
    # Access control (spec proxy 8)
    acl_enable: bool = field(default=False, metadata={"key": "aclEnable"})
    """True if the rules of RocketMQ 4.x apply, from files in `acl_directory`."""
    acl_directory: Path = field(default=Path("conf"), metadata={"key": "aclConfigDir"})  # ours
    authentication_enabled: bool = field(default=False, metadata={"key": "authenticationEnabled"})
    authorization_enabled: bool = field(default=False, metadata={"key": "authorizationEnabled"})
    authentication_white_list: str = field(default="", metadata={"key": "authenticationWhitelist"})
    """The full names of requests that need no authentication, separated by commas."""
    authorization_white_list: str = field(default="", metadata={"key": "authorizationWhitelist"})
    # The transport (spec proxy 1.3)
    message_bytes_max: int = field(default=136_314_880, metadata={"key": "grpcMaxInboundMessageSize"})
    idle_close_ms: int = field(default=120_000, metadata={"key": "grpcClientIdleTimeMills"})
    drain_s: int = field(default=30, metadata={"key": "grpcShutdownTimeSeconds"})
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
