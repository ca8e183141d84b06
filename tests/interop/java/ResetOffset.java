import java.util.ArrayList;
import java.util.Collections;
import java.util.List;

import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/** A running group is set back to a time: it gets what was stored since then again, and only that. */
public final class ResetOffset {
    public static void main(String[] arguments) {
        Check.main(() -> run(arguments[0], arguments[1]));
    }

    private static void run(String nameServer, String topic) throws Exception {
        DefaultMQProducer producer = Check.producer(nameServer, "reset");
        List<String> early = send(producer, topic, "early");
        // Brokers of the 4.9 line answer with the message nearest to the time, all others with the first after it.
        Thread.sleep(2000);
        long between = System.currentTimeMillis();
        Thread.sleep(20);
        List<String> late = send(producer, topic, "late");
        List<MessageExt> got = Check.list();
        String group = topic + "-group";
        DefaultMQPushConsumer consumer = Check.collect(Check.consumer(nameServer, group, topic, "*"), got);
        int all = early.size() + late.size();
        Check.until(() -> got.size() == all, 90, () -> got.size() + " of " + all);
        consumer.getDefaultMQPushConsumerImpl().persistConsumerOffset();
        got.clear();

        DefaultMQAdminExt admin = new DefaultMQAdminExt();
        admin.setNamesrvAddr(nameServer);
        admin.start();
        var offsets = admin.resetOffsetByTimestamp(topic, group, between, true);
        Check.same(4, offsets.size(), "queues that were reset");
        offsets.values().forEach(offset -> Check.same(5L, offset, "offset by time"));
        Check.until(() -> got.size() >= late.size(), 75, () -> got.size() + " of " + late.size());
        Collections.sort(late);
        Check.same(late, Check.sortedTexts(got), "what came again");
        admin.shutdown();
        consumer.shutdown();
        producer.shutdown();
    }

    /** Five messages into each of the four queues. */
    private static List<String> send(DefaultMQProducer producer, String topic, String word) throws Exception {
        List<String> sent = new ArrayList<>();
        for (int number = 0; number < 20; number++) {
            Check.isOk(producer.send(Check.message(topic, "", "", word + " " + number),
                (queues, message, index) -> queues.get((Integer) index % queues.size()), number));
            sent.add(word + " " + number);
        }
        return sent;
    }
}
