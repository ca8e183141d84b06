"""GET_BROKER_CONFIG (26) and UPDATE_BROKER_CONFIG (25): RocketMQ's names (spec remoting 8.6)."""

from __future__ import annotations

from collections.abc import Mapping

from tandemmq.broker.options import BrokerOptions
from tandemmq.errors import BadRequest, ConfigError, NotPermitted
from tandemmq.protocol.bodies.data_version import DataVersion, encode_data_version
from tandemmq.protocol.command import Command
from tandemmq.protocol.properties_file import parse_properties
from tandemmq.protocol.requests.admin import BrokerConfigResponse
from tandemmq.remoting.channel import Channel
from tandemmq.store.options import StoreOptions


class SettingsHandlers:
    """Shows the settings; they do not change while the broker runs, so there is one version of them."""

    def __init__(self, settings: Mapping[str, str], *, booted_at_ms: int) -> None:
        self._settings = settings
        self._version = DataVersion(timestamp_ms=booted_at_ms)

    def handle_show(self, channel: Channel, command: Command) -> Command:
        """Java properties text, sorted."""
        lines = [f"{key}={_escape(text)}" for key, text in sorted(self._settings.items())]
        version = encode_data_version(self._version).decode()
        return command.reply(0, BrokerConfigResponse(version=version), body="\n".join(lines).encode() + b"\n")

    def handle_update(self, channel: Channel, command: Command) -> Command:
        """Refuses any change, naming the keys; settings that are as asked already are no change."""
        try:
            wanted = parse_properties(bytes(command.body), "the request")
        except ConfigError as error:
            raise BadRequest(f"the body cannot be read: {error}") from None
        changed = [key for key, setting in wanted.items() if self._settings.get(key) != setting.text]
        if changed:
            raise NotPermitted(
                f"{', '.join(sorted(changed))[:200]}: settings cannot be changed while the broker runs;"
                " change its configuration file and restart it"
            )
        return command.reply()


def render_settings(options: BrokerOptions, store_options: StoreOptions) -> dict[str, str]:
    """RocketMQ key -> text, of everything that GET_BROKER_CONFIG shows."""
    values: dict[str, object] = {
        "brokerClusterName": options.cluster_name,
        "brokerName": options.broker_name,
        "brokerId": options.broker_id,
        "brokerRole": store_options.role.value,
        "brokerPermission": options.broker_permission,
        "brokerIP1": options.advertised_host,
        "brokerIP2": options.ha_advertised_host or options.advertised_host,
        "listenPort": options.listen_port,
        "haListenPort": options.ha_listen_port,
        "haMasterAddress": options.ha_master_address,
        "namesrvAddr": ";".join(options.name_servers),
        "registerNameServerPeriod": options.register_period_ms,
        "metricsExporterType": options.metrics_exporter.value,
        "metricsPromExporterHost": options.metrics_host,
        "metricsPromExporterPort": options.metrics_port,
        "autoCreateTopicEnable": options.auto_create_topic,
        "autoCreateSubscriptionGroup": options.auto_create_group,
        "defaultTopicQueueNums": options.default_topic_queue_count,
        "clusterTopicEnable": options.cluster_topic_enable,
        "brokerTopicEnable": options.broker_topic_enable,
        "traceTopicEnable": options.trace_topic_enable,
        "msgTraceTopicName": options.trace_topic_name,
        "regionId": options.region_id,
        "traceOn": options.trace_on,
        "timerWheelEnable": options.timer_wheel_enable,
        "timerMaxDelaySec": options.timer_delay_s_max,
        "recallMessageEnable": options.recall_enable,
        "slaveReadEnable": options.slave_read_enable,
        "longPollingEnable": options.long_polling_enable,
        "shortPollingTimeMills": options.short_polling_ms,
        "litePullMessageEnable": options.lite_pull_enable,
        "enablePropertyFilter": options.property_filter_enable,
        "storeReplyMessageEnable": options.reply_store_enable,
        "rejectTransactionMessage": options.transactions_refused,
        "transactionTimeOut": options.transaction_timeout_ms,
        "transactionCheckInterval": options.transaction_check_period_ms,
        "transactionCheckMax": options.transaction_check_count_max,
        "notifyConsumerIdsChangedEnable": options.notify_consumer_ids_changed,
        "channelExpiredTimeout": options.channel_expired_ms,
        "flushConsumerOffsetInterval": options.consumer_offset_flush_ms,
        "useServerSideResetOffset": options.server_side_reset,
        "storePathRootDir": store_options.root,
        "storePathCommitLog": store_options.log_dir,
        "mappedFileSizeCommitLog": store_options.commit_log_file_bytes,
        "mappedFileSizeConsumeQueue": store_options.consume_queue_file_bytes,
        "flushDiskType": store_options.flush_mode.value,
        "syncFlushTimeout": store_options.sync_flush_timeout_ms,
        "flushIntervalCommitLog": store_options.flush_interval_ms,
        "inSyncReplicas": store_options.in_sync_replicas,
        "slaveTimeout": store_options.slave_timeout_ms,
        "maxMessageSize": store_options.message_bytes_max,
        "accessMessageInMemoryMaxRatio": store_options.access_message_in_memory_ratio,
        "offsetCheckInSlave": store_options.offset_check_in_slave,
        "fileReservedTime": store_options.file_reserved_hours,
        "deleteWhen": ";".join(f"{hour:02d}" for hour in store_options.delete_at_hours),
        "diskMaxUsedSpaceRatio": store_options.disk_used_percent_max,
    }
    return {key: _render(value) for key, value in values.items()}


def _render(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")
