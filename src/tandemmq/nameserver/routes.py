"""Which code is answered by what: the whole interface of a name server. Any other code is answered 3."""

from __future__ import annotations

from tandemmq.nameserver.kv_config import KvConfig
from tandemmq.nameserver.options import NameServerOptions
from tandemmq.nameserver.queries import QueryHandlers
from tandemmq.nameserver.registration import RegistrationHandlers
from tandemmq.protocol.codes import RequestCode
from tandemmq.remoting.dispatch import Handler
from tandemmq.remoting.settings import Settings


def build_routes(
    registration: RegistrationHandlers,
    queries: QueryHandlers,
    kv: KvConfig,
    settings: Settings[NameServerOptions],
) -> dict[int, Handler]:
    """Handlers by request code (spec nameserver 3 to 10)."""
    return {
        RequestCode.PUT_KV_CONFIG: kv.handle_put,
        RequestCode.GET_KV_CONFIG: kv.handle_get,
        RequestCode.DELETE_KV_CONFIG: kv.handle_delete,
        RequestCode.GET_KVLIST_BY_NAMESPACE: kv.handle_list,
        RequestCode.REGISTER_BROKER: registration.handle_register_broker,
        RequestCode.UNREGISTER_BROKER: registration.handle_unregister_broker,
        RequestCode.REGISTER_TOPIC_IN_NAMESRV: registration.handle_register_topic,
        RequestCode.QUERY_DATA_VERSION: registration.handle_query_data_version,
        RequestCode.BROKER_HEARTBEAT: registration.handle_heartbeat,
        RequestCode.GET_ROUTEINFO_BY_TOPIC: queries.handle_route,
        RequestCode.GET_BROKER_CLUSTER_INFO: queries.handle_cluster_info,
        RequestCode.GET_BROKER_MEMBER_GROUP: queries.handle_member_group,
        RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: queries.handle_all_topics,
        RequestCode.GET_TOPICS_BY_CLUSTER: queries.handle_topics_of_cluster,
        RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: queries.handle_system_topics,
        RequestCode.GET_UNIT_TOPIC_LIST: queries.handle_unit_topics,
        RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST: queries.handle_unit_sub_topics,
        RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: queries.handle_unit_sub_topics_outside_units,
        RequestCode.DELETE_TOPIC_IN_NAMESRV: queries.handle_delete_topic,
        RequestCode.WIPE_WRITE_PERM_OF_BROKER: queries.handle_wipe_write_permission,
        RequestCode.ADD_WRITE_PERM_OF_BROKER: queries.handle_add_write_permission,
        RequestCode.UPDATE_NAMESRV_CONFIG: settings.handle_update,
        RequestCode.GET_NAMESRV_CONFIG: settings.handle_get,
    }
