"""The log events, each a stable `noun.verb_past` string, unique, sorted by area.

Facts go beside the event as `extra` fields with units in their names; never in the text.
"""

from __future__ import annotations

from typing import Final

# broker
BROKER_STARTED: Final = "broker.started"
BROKER_STOPPED: Final = "broker.stopped"
CLIENT_EXPIRED: Final = "client.expired"
DELAYED_MESSAGE_LOST: Final = "delayed_message.lost"
DELAYED_MESSAGE_REFUSED: Final = "delayed_message.refused"
DELIVERY_STARTED: Final = "delivery.started"
DELIVERY_STOPPED: Final = "delivery.stopped"
GROUP_CREATED: Final = "group.created"
METRICS_STARTED: Final = "metrics.started"
NAMESERVER_REACHED: Final = "nameserver.reached"
NAMESERVER_REFUSED: Final = "nameserver.refused_registration"
NAMESERVER_UNREACHABLE: Final = "nameserver.became_unreachable"
PULL_FAILED: Final = "pull.failed"
REVIVE_POSTPONED: Final = "revive.postponed"
REVIVE_STARTED: Final = "revive.started"
TABLE_LOADED_FROM_BACKUP: Final = "table.loaded_from_backup"
TABLE_SAVE_FAILED: Final = "table.save_failed"
TABLE_UNREADABLE: Final = "table.found_unreadable"
TOPIC_CHANGED: Final = "topic.changed"
TOPIC_CREATED: Final = "topic.created"
TOPIC_DELETED: Final = "topic.deleted"
TRANSACTION_DISCARDED: Final = "transaction.discarded"
TRANSACTION_LOST: Final = "transaction.lost"
TRANSACTION_MARKS_FULL: Final = "transaction_marks.became_full"

# client
CLIENT_PULL_FAILED: Final = "client_pull.failed"
COMMIT_FAILED: Final = "commit.failed"
HEARTBEAT_FAILED: Final = "heartbeat.failed"
OFFSET_MOVED: Final = "offset.moved"
QUEUE_LOCK_FAILED: Final = "queue_lock.failed"
QUEUE_LOCK_LOST: Final = "queue_lock.lost"
QUEUES_REBALANCED: Final = "queues.rebalanced"
REBALANCE_FAILED: Final = "rebalance.failed"
ROUTE_REFRESH_FAILED: Final = "route.refresh_failed"
SEND_RETRIED: Final = "send.retried"
TRANSACTION_CHECK_FAILED: Final = "transaction_check.failed"
TRANSACTION_END_UNSENT: Final = "transaction_end.failed_to_leave"

# config
SETTINGS_IGNORED: Final = "settings.ignored"
SETTING_CHANGED: Final = "setting.changed"

# nameserver
BROKER_EXPIRED: Final = "broker.expired"
BROKER_REGISTERED: Final = "broker.registered"
BROKER_UNREGISTERED: Final = "broker.unregistered"
NAMESERVER_STARTED: Final = "nameserver.started"
NAMESERVER_STOPPED: Final = "nameserver.stopped"
KV_CONFIG_LOADED: Final = "kv_config.loaded"
KV_CONFIG_UNREADABLE: Final = "kv_config.found_unreadable"
NAMESERVER_CONFIG_CHANGED: Final = "nameserver_config.changed"

# remoting
CHANNEL_CLOSED_BY_BAD_FRAME: Final = "channel.closed_by_bad_frame"
CHANNEL_CLOSED_BY_IDLENESS: Final = "channel.closed_by_idleness"
CHANNEL_CLOSED_BY_SLOW_FRAME: Final = "channel.closed_by_slow_frame"
CHANNEL_CLOSED_BY_SLOW_READER: Final = "channel.closed_by_slow_reader"
CHANNEL_REFUSED: Final = "channel.refused"
HTTP_PAGE_FAILED: Final = "http_page.failed"
REMOTING_STARTED: Final = "remoting.started"
REQUEST_FAILED: Final = "request.failed"

# replication
CONFIG_SYNC_FAILED: Final = "config_sync.failed"
CONFIG_SYNC_RESUMED: Final = "config_sync.resumed"
MASTER_CONNECTED: Final = "master.connected"
MASTER_LOST: Final = "master.lost"
MASTER_UNREACHABLE: Final = "master.became_unreachable"
REPLICA_DAMAGE_REFUSED: Final = "replica.refused_damage"
REPLICA_HALTED: Final = "replica.halted"
REPLICA_TAIL_CHECKED: Final = "replica.tail_checked"
REPLICATION_STARTED: Final = "replication.started"
SLAVE_AHEAD: Final = "slave.found_ahead"
SLAVE_DISCONNECTED: Final = "slave.disconnected"
SLAVE_IN_SYNC: Final = "slave.came_in_sync"
SLAVE_OUT_OF_SYNC: Final = "slave.fell_out_of_sync"
SLAVE_REFUSED: Final = "slave.refused"
SLAVE_SUBSCRIBED: Final = "slave.subscribed"
SLAVE_TOO_OLD: Final = "slave.found_too_old"

# runtime
TASK_FAILED: Final = "task.failed"

# spark
LAKE_COMMIT_FAILED: Final = "lake_commit.failed"
MESSAGES_LOST: Final = "messages.found_lost"
PROGRESS_REFUSED: Final = "progress.refused"
REPLICA_UNREACHABLE: Final = "replica.became_unreachable"
ROUTE_UNREACHABLE: Final = "route.became_unreachable"

# store
ANSWER_FAILED: Final = "answer.failed"
CALLBACK_FAILED: Final = "callback.failed"
COMMIT_RESUMED: Final = "log_commit.resumed"
COMMIT_TO_LOG_FAILED: Final = "log_commit.failed"
DISK_BECAME_FREE: Final = "disk.became_free"
DISK_BECAME_FULL: Final = "disk.became_full"
DISPATCH_STOPPED: Final = "dispatch.stopped"
FLUSH_FAILED: Final = "flush.failed"
KEY_INDEX_DELETED: Final = "key_index.deleted"
KEY_INDEX_FAILED: Final = "key_index.failed"
LOG_TAIL_CUT: Final = "log_tail.cut"
LOG_WRITE_FAILED: Final = "log_write.failed"
LOG_WRITE_RESUMED: Final = "log_write.resumed"
PAGE_CACHE_BECAME_BUSY: Final = "page_cache.became_busy"
PAGE_CACHE_BECAME_QUICK: Final = "page_cache.became_quick"
POOL_ABANDONED: Final = "pool.abandoned"
POOL_EXHAUSTED: Final = "pool.exhausted"
POOL_MEMORY_UNLOCKED: Final = "pool_memory.left_unlocked"
QUEUE_GAP_FILLED: Final = "queue_gap.filled"
QUEUE_WRITE_FAILED: Final = "queue_write.failed"
SEGMENT_DELETE_FAILED: Final = "segment.delete_failed"
SEGMENT_DELETED: Final = "segment.deleted"
STORE_CLOSED: Final = "store.closed"
STORE_FILE_IGNORED: Final = "store_file.ignored"
STORE_OPENED: Final = "store.opened"
SYNC_MASTER_ALONE: Final = "sync_master.waits_for_no_slave"
