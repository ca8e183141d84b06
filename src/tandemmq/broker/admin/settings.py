"""The settings that clients and tools look at, under RocketMQ's names. Pure."""

from __future__ import annotations

from tandemmq.broker.options import BrokerOptions
from tandemmq.store.options import StoreOptions


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
        "slaveReadEnable": options.slave_read_enable,
        "longPollingEnable": options.long_polling_enable,
        "shortPollingTimeMills": options.short_polling_ms,
        "litePullMessageEnable": options.lite_pull_enable,
        "enablePropertyFilter": options.property_filter_enable,
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
