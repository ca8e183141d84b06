"""RocketMQ's keys: the option fields that they set, and the keys without an effect here.

The options declare their keys (`protocol.setting_kinds.setting`). A key may set several fields, or none if
only its relation to others is checked (`load.check_broker`). Keys without an effect here are in
`BROKER_INERT` and similar tables. Keys that a user relies on for safety are in `REFUSED`: every value except
the harmless one is an error, because ignoring it would expose or lose data.
Source: spec store 20, spec semantics 25.2 to 25.4, spec replication 17, spec nameserver 10.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from tandemmq.broker.options import AccessOptions, BrokerOptions, ElectionOptions, InnerProxyOptions
from tandemmq.controller.options import ControllerOptions
from tandemmq.nameserver.options import NameServerOptions
from tandemmq.protocol import setting_kinds as kinds
from tandemmq.protocol.setting_kinds import ValueKind, option_keys
from tandemmq.proxy.options import ProxyOptions
from tandemmq.remoting.options import TlsOptions
from tandemmq.replication.core.options import ReplicationOptions
from tandemmq.store.options import StoreOptions


@dataclass(frozen=True, slots=True)
class Key:
    """The allowed texts of a key, and the `part.field` values that it sets."""

    kind: ValueKind
    fields: tuple[str, ...]


TLS_FILE_KEYS: Final = ("tls.config.file", "tlsConfigFile")
"""The keys of a properties file with more TLS settings; directly given settings win."""


def _keys_of(part: str, options: type[Any]) -> dict[str, Key]:
    """Returns the keys of these options."""
    return {
        name: Key(option.metadata["kind"], (f"{part}.{option.name}",))
        for name, option in option_keys(options).items()
    }


TLS_KEYS: Final = _keys_of("tls", TlsOptions)
"""Keys of all servers; in RocketMQ they are system properties or are in tls.config.file."""


def _broker_keys() -> dict[str, Key]:
    """Returns the keys of a broker's parts. A key in two parts sets both."""
    keys = dict(TLS_KEYS)
    for part, options in (
        ("broker", BrokerOptions),
        ("store", StoreOptions),
        ("replication", ReplicationOptions),
        ("election", ElectionOptions),
        ("access", AccessOptions),
        ("inner_proxy", InnerProxyOptions),
    ):
        for name, key in _keys_of(part, options).items():
            before = keys[name].fields if name in keys else ()
            keys[name] = Key(key.kind, (*before, *key.fields))
    return keys


BROKER_KEYS: Final = _broker_keys()
CREDENTIALS_KEYS: Final = {
    "innerClientAuthenticationCredentials": Key(kinds.CREDENTIALS, ("caller.credentials",))
}
"""The same key as the brokers', of the other servers; ours."""

NAMESERVER_KEYS: Final[dict[str, Key]] = {
    **TLS_KEYS,
    **_keys_of("nameserver", NameServerOptions),
    "enableControllerInNamesrv": Key(kinds.FLAG, ("caller.has_controller",)),
    **CREDENTIALS_KEYS,
}

CONTROLLER_KEYS: Final[dict[str, Key]] = {
    **TLS_KEYS,
    **_keys_of("controller", ControllerOptions),
    **CREDENTIALS_KEYS,
}
"""The keys of a controller. A name server with enableControllerInNamesrv also accepts those that are not its
own keys.
"""

PROXY_KEYS: Final[dict[str, Key]] = {
    **TLS_KEYS,
    "tlsCertPath": TLS_KEYS["tls.server.certPath"],
    "tlsKeyPath": TLS_KEYS["tls.server.keyPath"],
    "tlsKeyPassword": TLS_KEYS["tls.server.keyPassword"],
    **_keys_of("proxy", ProxyOptions),
    **CREDENTIALS_KEYS,
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
