import java.util.List;

import org.apache.rocketmq.client.QueryResult;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** Messages by key, by id and by unique id; offsets by time and at both ends. */
public final class Queries {
    public static void main(String[] arguments) {
        Check.main(() -> run(arguments[0], arguments[1]));
    }

    private static void run(String nameServer, String topic) throws Exception {
        DefaultMQProducer producer = Check.producer(nameServer, "queries");
        long begin = System.currentTimeMillis();
        Check.isOk(producer.send(Check.message(topic, "", "", "makes the topic")));
        MessageQueue queue = Check.queues(producer, topic).get(0);
        long start = producer.maxOffset(queue);
        SendResult middle = null;
        for (int number = 0; number < 9; number++) {
            SendResult result = Check.isOk(
                producer.send(Check.message(topic, "t", "all key" + number, "q " + number), queue));
            middle = number == 4 ? result : middle;
            Thread.sleep(5);
        }
        String id = middle.getOffsetMsgId();
        String uniqueId = middle.getMsgId();

        Check.until(() -> find(producer, topic, "all", begin) == 9, 15,
            () -> find(producer, topic, "all", begin) + " of 9 by the common key");
        Check.same(1, find(producer, topic, "key4", begin), "messages by one key");
        Check.same(0, find(producer, topic, "key", begin), "messages by an unknown key");
        MessageExt byId = producer.viewMessage(topic, id);
        Check.same("q 4", Check.text(byId), "body by id");
        Check.same(start + 4, byId.getQueueOffset(), "offset by id");
        Check.same("q 4", Check.text(producer.viewMessage(topic, uniqueId)), "body by unique id");

        Check.same(0L, producer.minOffset(queue), "smallest offset");
        Check.same(start + 9, producer.maxOffset(queue), "end offset");
        Check.same(start + 4, producer.searchOffset(queue, byId.getStoreTimestamp()), "offset by time");
        // Brokers of the 4.9 line answer with the last message.
        long later = producer.searchOffset(queue, System.currentTimeMillis() + 60_000);
        Check.that(later == start + 9 || later == start + 8, "offset of a time to come: " + later);
        Check.that(producer.earliestMsgStoreTime(queue) >= begin - 1000, "earliest time");
        producer.shutdown();
    }

    private static int find(DefaultMQProducer producer, String topic, String key, long begin) throws Exception {
        try {
            QueryResult result =
                producer.queryMessage(topic, key, 32, begin - 60_000, System.currentTimeMillis() + 60_000);
            List<MessageExt> found = result.getMessageList();
            found.forEach(message -> Check.that(message.getKeys().contains(key), "key " + message.getKeys()));
            return found.size();
        } catch (org.apache.rocketmq.client.exception.MQClientException noMessage) {
            return 0;
        }
    }
}
