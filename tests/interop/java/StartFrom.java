import java.text.SimpleDateFormat;
import java.util.Date;
import java.util.List;

import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** Where a new group begins, and that one which comes back goes on where it was. */
public final class StartFrom {
    public static void main(String[] arguments) {
        Check.main(() -> run(arguments[0], arguments[1]));
    }

    private static void run(String nameServer, String topic) throws Exception {
        DefaultMQProducer producer = Check.producer(nameServer, "start-from");
        for (int number = 0; number < 8; number++) {
            send(producer, topic, number, "early");
        }
        String second = new SimpleDateFormat("yyyyMMddHHmmss").format(new Date());
        Thread.sleep(1100);
        for (int number = 0; number < 4; number++) {
            send(producer, topic, number, "late");
        }
        List<MessageExt> byTime = Check.list();
        DefaultMQPushConsumer timed = Check.consumer(nameServer, topic + "-time", topic, "*");
        timed.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_TIMESTAMP);
        timed.setConsumeTimestamp(second);
        Check.collect(timed, byTime);
        List<MessageExt> all = Check.list();
        DefaultMQPushConsumer first =
            Check.collect(Check.consumer(nameServer, topic + "-first", topic, "*"), all);
        Check.until(() -> all.size() >= 12, 90, () -> all.size() + " of 12");
        Check.same(12, all.size(), "messages from the first offset on");
        // Where the consumer asks to begin counts only when the topic has lost messages already.
        Check.until(() -> byTime.size() >= 12, 90, () -> byTime.size() + " of 12");
        Check.same(12, byTime.size(), "messages of a topic that still has its first");

        first.getDefaultMQPushConsumerImpl().persistConsumerOffset();
        first.shutdown();
        for (int number = 0; number < 4; number++) {
            send(producer, topic, number, "missed");
        }
        List<MessageExt> rest = Check.list();
        DefaultMQPushConsumer back = Check.collect(Check.consumer(nameServer, topic + "-first", topic, "*"), rest);
        Check.until(() -> rest.size() >= 4, 40, () -> rest.size() + " of 4 after coming back");
        Check.same(List.of("missed", "missed", "missed", "missed"), Check.sortedTexts(rest), "after coming back");
        back.shutdown();
        timed.shutdown();
        producer.shutdown();
    }

    private static void send(DefaultMQProducer producer, String topic, int number, String body) throws Exception {
        SendResult result = Check.isOk(producer.send(Check.message(topic, "", "", body),
            (List<MessageQueue> queues, org.apache.rocketmq.common.message.Message message, Object index) ->
                queues.get((Integer) index % queues.size()), number));
        Check.same(number % 4, result.getMessageQueue().getQueueId(), "queue");
    }
}
