import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;

import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.MessageExt;

/** A queue selector keeps a key in its queue; orderly consumers see it in order, also after a suspension. */
public final class Ordered {
    private static final int KEYS = 6;
    private static final int ROUNDS = 20;

    public static void main(String[] arguments) {
        Check.main(() -> run(arguments[0], arguments[1]));
    }

    private static void run(String nameServer, String topic) throws Exception {
        DefaultMQProducer producer = Check.producer(nameServer, "ordered");
        for (int round = 0; round < ROUNDS; round++) {
            for (int key = 0; key < KEYS; key++) {
                Check.isOk(producer.send(Check.message(topic, "", "", key + ":" + round),
                    (queues, message, chosen) -> queues.get((Integer) chosen % queues.size()), key));
            }
        }
        Map<String, List<String>> seen = new ConcurrentHashMap<>();
        Set<String> suspended = ConcurrentHashMap.newKeySet();
        List<DefaultMQPushConsumer> consumers = new ArrayList<>();
        for (int number = 0; number < 2; number++) {
            DefaultMQPushConsumer consumer = Check.consumer(nameServer, topic + "-group", topic, "*");
            consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
                for (MessageExt message : messages) {
                    String[] parts = Check.text(message).split(":");
                    if (parts[1].equals("7") && suspended.add(parts[0])) {
                        context.setSuspendCurrentQueueTimeMillis(100);
                        return ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT;
                    }
                    seen.computeIfAbsent(parts[0], key -> Check.list()).add(parts[1]);
                }
                return ConsumeOrderlyStatus.SUCCESS;
            });
            consumer.start();
            consumers.add(consumer);
        }
        Check.until(() -> count(seen) >= KEYS * ROUNDS, 60, () -> count(seen) + " received: " + seen);
        consumers.forEach(DefaultMQPushConsumer::shutdown);
        producer.shutdown();
        List<String> wanted = new ArrayList<>();
        for (int round = 0; round < ROUNDS; round++) {
            wanted.add("" + round);
        }
        Check.same(KEYS, suspended.size(), "keys whose queue was suspended");
        // A queue that moves to the other consumer may be seen again from its committed offset.
        seen.forEach((key, rounds) -> Check.same(wanted, firstSeen(rounds), "first sights of key " + key));
    }

    private static int count(Map<String, List<String>> seen) {
        return seen.values().stream().mapToInt(rounds -> firstSeen(rounds).size()).sum();
    }

    private static List<String> firstSeen(List<String> rounds) {
        synchronized (rounds) {
            return new ArrayList<>(new java.util.LinkedHashSet<>(rounds));
        }
    }
}
