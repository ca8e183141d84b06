import java.util.List;

import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.MessageExt;

/** A namespace is a prefix that its own clients do not see, also on a retry; others see it. */
@SuppressWarnings("deprecation")
public final class Namespace {
    public static void main(String[] arguments) {
        Check.main(() -> run(arguments[0], arguments[1]));
    }

    private static void run(String nameServer, String topic) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("namespace");
        producer.setNamesrvAddr(nameServer);
        producer.setNamespace("space-a");
        producer.start();
        SendResult sent = Check.isOk(producer.send(Check.message(topic, "tag", "key", "inside")));
        Check.same(topic, sent.getMessageQueue().getTopic(), "topic of the answer");
        DefaultMQProducer other = Check.producer(nameServer, "no-namespace");
        Check.isOk(other.send(Check.message(topic, "tag", "key", "outside")));

        List<Integer> tries = Check.list();
        DefaultMQPushConsumer inside = new DefaultMQPushConsumer(topic + "-group");
        inside.setNamesrvAddr(nameServer);
        inside.setNamespace("space-a");
        inside.setConsumeFromWhere(
            org.apache.rocketmq.common.consumer.ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        inside.subscribe(topic, "*");
        inside.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                boolean isOwn = Check.text(message).equals("inside") && message.getTopic().equals(topic);
                tries.add(isOwn ? message.getReconsumeTimes() : -1);
            }
            context.setDelayLevelWhenNextConsume(1);
            return tries.size() < 2 ? ConsumeConcurrentlyStatus.RECONSUME_LATER
                : ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        inside.start();
        List<MessageExt> got = Check.list();
        DefaultMQPushConsumer outside = Check.consumer(nameServer, topic + "-all", topic, "*");
        outside.subscribe("space-a%" + topic, "*");
        Check.collect(outside, got);
        Check.until(() -> got.size() == 2, 60, () -> "both messages outside");
        Check.same(List.of("inside", "outside"), Check.sortedTexts(got), "what is seen outside");
        Check.until(() -> tries.size() == 2, 60, () -> "tries " + tries);
        Check.same(List.of(0, 1), tries, "tries of the message inside");
        inside.shutdown();
        outside.shutdown();
        other.shutdown();
        producer.shutdown();
    }
}
