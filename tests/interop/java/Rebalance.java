import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentSkipListSet;
import java.util.concurrent.atomic.AtomicBoolean;

import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** Three consumers come and go under load: each queue has one owner again, and nothing is lost. */
public final class Rebalance {
    public static void main(String[] arguments) {
        Check.main(() -> run(arguments[0], arguments[1]));
    }

    private static void run(String nameServer, String topic) throws Exception {
        DefaultMQProducer producer = Check.producer(nameServer, "rebalance");
        Check.isOk(producer.send(Check.message(topic, "", "", "0")));
        AtomicBoolean isLoading = new AtomicBoolean(true);
        Set<String> sent = new ConcurrentSkipListSet<>();
        sent.add("0");
        Thread load = new Thread(() -> {
            for (int number = 1; isLoading.get(); number++) {
                try {
                    Check.isOk(producer.send(Check.message(topic, "", "", "" + number)));
                    sent.add("" + number);
                    Thread.sleep(5);
                } catch (Exception failure) {
                    throw new IllegalStateException(failure);
                }
            }
        });
        List<Throwable> failures = Check.list();
        load.setUncaughtExceptionHandler((thread, failure) -> failures.add(failure));
        load.start();

        List<MessageExt> got = Check.list();
        List<DefaultMQPushConsumer> consumers = new ArrayList<>();
        for (int count = 1; count <= 3; count++) {
            consumers.add(Check.collect(Check.consumer(nameServer, topic + "-group", topic, "*"), got));
            queuesAreShared(consumers, topic, count + " consumers");
        }
        for (int count = 2; count >= 1; count--) {
            consumers.remove(0).shutdown();
            queuesAreShared(consumers, topic, count + " consumers left");
        }
        consumers.add(Check.collect(Check.consumer(nameServer, topic + "-group", topic, "*"), got));
        queuesAreShared(consumers, topic, "2 consumers again");
        isLoading.set(false);
        load.join();
        Check.that(failures.isEmpty(), "load: " + failures);
        Check.until(() -> new HashSet<>(Check.sortedTexts(got)).containsAll(sent), 90,
            () -> missing(sent, got));
        System.out.println("sent " + sent.size() + ", received " + got.size());
        consumers.forEach(DefaultMQPushConsumer::shutdown);
        producer.shutdown();
    }

    /** Waits until the four queues have one owner each and every consumer has its share. */
    private static void queuesAreShared(List<DefaultMQPushConsumer> consumers, String topic, String when)
        throws Exception {
        long begin = System.nanoTime();
        Check.until(() -> {
            int count = 0;
            Set<MessageQueue> all = new HashSet<>();
            for (DefaultMQPushConsumer consumer : consumers) {
                Set<MessageQueue> own = queues(consumer, topic);
                if (own.size() < 4 / consumers.size()) {
                    return false;
                }
                count += own.size();
                all.addAll(own);
            }
            return count == 4 && all.size() == 4;
        }, 45, () -> when);
        System.out.println(when + ": shared after " + (System.nanoTime() - begin) / 1_000_000 + " ms");
    }

    private static Set<MessageQueue> queues(DefaultMQPushConsumer consumer, String topic) {
        Set<MessageQueue> queues = new HashSet<>(
            consumer.getDefaultMQPushConsumerImpl().getRebalanceImpl().getProcessQueueTable().keySet());
        queues.removeIf(queue -> !queue.getTopic().equals(topic));
        return queues;
    }

    private static String missing(Set<String> sent, List<MessageExt> got) {
        Set<String> left = new TreeSet<>(sent);
        left.removeAll(Check.sortedTexts(got));
        return left.size() + " of " + sent.size() + " missing: " + left;
    }
}
