import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;

import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/** Messages of the delay levels 1 and 2 come after 1 and 5 seconds, not earlier and not much later. */
public final class Delayed {
    public static void main(String[] arguments) {
        Check.main(() -> run(arguments[0], arguments[1]));
    }

    private static void run(String nameServer, String topic) throws Exception {
        DefaultMQProducer producer = Check.producer(nameServer, "delayed");
        Check.isOk(producer.send(Check.message(topic, "", "", "now")));
        Map<String, MessageExt> got = new ConcurrentHashMap<>();
        Map<String, Long> after = new ConcurrentHashMap<>();
        DefaultMQPushConsumer consumer = Check.consumer(nameServer, topic + "-group", topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                after.put(Check.text(message), System.currentTimeMillis() - message.getBornTimestamp());
                got.put(Check.text(message), message);
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        Check.until(() -> got.containsKey("now"), 90, () -> "the message without delay");
        for (int level = 1; level <= 2; level++) {
            Message message = Check.message(topic, "tag", "key" + level, "level " + level);
            message.setDelayTimeLevel(level);
            message.putUserProperty("mine", "kept");
            Check.isOk(producer.send(message));
        }
        Check.until(() -> got.size() == 3, 90, () -> "got " + got.keySet());
        consumer.shutdown();
        producer.shutdown();
        long[] seconds = {0, 1, 5};
        for (int level = 1; level <= 2; level++) {
            String name = "level " + level;
            long delay = after.get(name);
            Check.that(delay >= seconds[level] * 1000 - 50 && delay < seconds[level] * 1000 + 5000,
                name + " came after " + delay + " ms");
            Check.same(topic, got.get(name).getTopic(), "topic");
            Check.same("key" + level, got.get(name).getKeys(), "keys");
            Check.same("tag", got.get(name).getTags(), "tags");
            Check.same("kept", got.get(name).getUserProperty("mine"), "property");
        }
    }
}
