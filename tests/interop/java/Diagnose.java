import java.util.List;
import java.util.Map;
import java.util.TreeMap;

import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/** What an operator asks about clients that are online, and a message that is consumed once more by order. */
public final class Diagnose {
    public static void main(String[] arguments) {
        Check.main(() -> run(arguments[0], arguments[1]));
    }

    private static int count(DefaultMQAdminExt admin, String producers, String topic) throws Exception {
        try {
            return admin.examineProducerConnectionInfo(producers, topic).getConnectionSet().size();
        } catch (MQBrokerException unknown) {
            return 0;
        }
    }

    private static void run(String nameServer, String topic) throws Exception {
        String producers = topic + "-producers";
        String group = topic + "-group";
        DefaultMQProducer producer = Check.producer(nameServer, producers);
        SendResult sent = Check.isOk(producer.send(Check.message(topic, "tag", "key", "again")));
        List<MessageExt> got = Check.list();
        DefaultMQPushConsumer consumer =
            Check.collect(Check.consumer(nameServer, group, topic, "tag || other"), got);
        String client = consumer.getDefaultMQPushConsumerImpl().getmQClientFactory().getClientId();
        Check.until(() -> got.size() == 1, 90, () -> "the message");
        consumer.getDefaultMQPushConsumerImpl().persistConsumerOffset();

        DefaultMQAdminExt admin = new DefaultMQAdminExt();
        admin.setNamesrvAddr(nameServer);
        admin.start();
        var info = admin.getConsumerRunningInfo(group, client, true);
        Check.same("CONSUME_PASSIVELY", info.getProperties().get("PROP_CONSUME_TYPE"), "way of consuming");
        Check.same(1, info.getSubscriptionSet().stream().filter(one -> one.getTopic().equals(topic)).count() == 1
            ? 1 : info.getSubscriptionSet(), "subscriptions");
        Check.same(4L, info.getMqTable().keySet().stream().filter(one -> one.getTopic().equals(topic)).count(),
            "queues that it has");
        Check.that(info.getJstack() != null && info.getJstack().contains("ConsumeMessageThread_"), "stacks");

        var result = admin.consumeMessageDirectly(group, client, topic, sent.getMsgId());
        Check.same("CR_SUCCESS", result.getConsumeResult().name(), "outcome of consuming by order");
        Check.same(2, got.size(), "times that the message was consumed");
        Check.same("again", Check.text(got.get(1)), "its body");

        var connections = admin.examineConsumerConnectionInfo(group);
        Check.same(1, connections.getConnectionSet().size(), "consumers online");
        Check.same(client, connections.getConnectionSet().iterator().next().getClientId(), "client id");
        Check.same("tag || other", connections.getSubscriptionTable().get(topic).getSubString(), "subscription");
        Check.same("CONSUME_FROM_FIRST_OFFSET", connections.getConsumeFromWhere().name(), "where it began");
        // A producer tells of itself a second after its start at the earliest; until then its group is unknown.
        Check.until(() -> count(admin, producers, topic) == 1, 60, () -> "the producer is online");
        Check.that(admin.queryTopicConsumeByWho(topic).getGroupList().contains(group), "groups of the topic");

        Map<String, Map<MessageQueue, Long>> status = new TreeMap<>(admin.getConsumeStatus(topic, group, ""));
        Check.same(List.of(client), List.copyOf(status.keySet()), "clients in the status");
        long sum = status.get(client).values().stream().mapToLong(Long::longValue).sum();
        Check.same(1L, sum, "sum of the client's offsets");
        Check.until(() -> admin.examineConsumeStats(group, topic).computeTotalDiff() == 0, 90,
            () -> "no message waits");
        Check.same(4, admin.examineConsumeStats(group, topic).getOffsetTable().size(), "queues of the progress");
        MessageExt message = admin.viewMessage(topic, sent.getMsgId());
        // A Java broker tells an offset that was committed just now only after a while.
        Check.until(() -> admin.messageTrackDetail(message).stream().anyMatch(
            track -> track.getConsumerGroup().equals(group) && track.getTrackType().name().equals("CONSUMED")),
            30, () -> "consumed: " + admin.messageTrackDetail(message));
        admin.shutdown();
        consumer.shutdown();
        producer.shutdown();
    }
}
