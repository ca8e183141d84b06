import java.util.ArrayList;
import java.util.Collection;
import java.util.Collections;
import java.util.List;
import java.util.TreeSet;

import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** The lite pull consumer: subscribe, commit and go on from there; assign and seek. */
public final class LitePull {
    public static void main(String[] arguments) {
        Check.main(() -> run(arguments[0], arguments[1]));
    }

    private static void run(String nameServer, String topic) throws Exception {
        DefaultMQProducer producer = Check.producer(nameServer, "lite-pull");
        List<String> first = send(producer, topic, "first");
        DefaultLitePullConsumer consumer = open(nameServer, topic + "-group");
        consumer.subscribe(topic, "*");
        consumer.start();
        Check.same(first, poll(consumer, first.size()), "bodies of the first consumer");
        consumer.commitSync();
        consumer.shutdown();

        List<String> second = send(producer, topic, "second");
        DefaultLitePullConsumer next = open(nameServer, topic + "-group");
        next.subscribe(topic, "*");
        next.start();
        Check.same(second, poll(next, second.size()), "bodies after the committed offsets");
        next.shutdown();

        DefaultLitePullConsumer assigned = open(nameServer, topic + "-assigned");
        assigned.setAutoCommit(false);
        assigned.start();
        Collection<MessageQueue> queues = assigned.fetchMessageQueues(topic);
        Check.same(4, queues.size(), "queues");
        assigned.assign(queues);
        for (MessageQueue queue : queues) {
            assigned.seekToBegin(queue);
        }
        List<String> all = new ArrayList<>(first);
        all.addAll(second);
        Collections.sort(all);
        Check.same(all, pollDistinct(assigned, all.size()), "bodies after a seek to the begin");
        MessageQueue queue = queues.iterator().next();
        long end = producer.maxOffset(queue);
        assigned.seek(queue, end - 2);
        Check.same(2, poll(assigned, 2).size(), "messages after a seek");
        assigned.shutdown();
        producer.shutdown();
    }

    private static DefaultLitePullConsumer open(String nameServer, String group) {
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer(group);
        consumer.setNamesrvAddr(nameServer);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        return consumer;
    }

    private static List<String> send(DefaultMQProducer producer, String topic, String word) throws Exception {
        List<String> sent = new ArrayList<>();
        for (int number = 0; number < 40; number++) {
            Check.isOk(producer.send(Check.message(topic, "", "", word + " " + number)));
            sent.add(word + " " + number);
        }
        Collections.sort(sent);
        return sent;
    }

    /** A pull that was under way when its queue was moved may give what it got once more. */
    private static List<String> pollDistinct(DefaultLitePullConsumer consumer, int count) throws Exception {
        TreeSet<String> got = new TreeSet<>();
        Check.until(() -> got.addAll(Check.sortedTexts(consumer.poll(500))) && got.size() >= count, 90,
            () -> got.size() + " of " + count);
        return new ArrayList<>(got);
    }

    private static List<String> poll(DefaultLitePullConsumer consumer, int count) throws Exception {
        List<MessageExt> got = new ArrayList<>();
        Check.until(() -> got.addAll(consumer.poll(500)) && got.size() >= count, 90,
            () -> got.size() + " of " + count);
        return Check.sortedTexts(got);
    }
}
