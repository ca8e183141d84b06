import java.util.List;

import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/** A timed message is taken back by a producer that traces: it is never delivered, and the recall is traced. */
public final class Recall {
    private static final String TRACES = "RMQ_SYS_TRACE_TOPIC";

    public static void main(String[] arguments) {
        System.setProperty("com.rocketmq.recall.default.trace.enable", "true");
        Check.main(() -> run(arguments[0], arguments[1]));
    }

    private static void run(String nameServer, String topic) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer(topic + "-producers", true, null);
        producer.setNamesrvAddr(nameServer);
        producer.start();
        Check.isOk(producer.send(Check.message(topic, "tag", "", "at once")));
        List<MessageExt> got = Check.list();
        DefaultMQPushConsumer consumer = Check.collect(
            Check.consumer(nameServer, topic + "-group", topic, "*"), got);
        List<MessageExt> traces = Check.list();
        DefaultMQPushConsumer reader = Check.collect(
            Check.consumer(nameServer, topic + "-reader", TRACES, "*"), traces);

        SendResult taken = sendIn(producer, topic, "taken back", 8);
        SendResult kept = sendIn(producer, topic, "kept", 10);
        Check.that(taken.getRecallHandle() != null && kept.getRecallHandle() != null, "handles of timed messages");
        Check.same(taken.getMsgId(), producer.recallMessage(topic, taken.getRecallHandle()), "id that is recalled");
        // What came is known once the later message is there.
        Check.until(() -> got.size() == 2, 60, () -> "the message that was kept, after " + Check.sortedTexts(got));
        Check.same(List.of("at once", "kept"), Check.sortedTexts(got), "what was delivered");

        Check.until(() -> recallTraced(traces, taken.getMsgId()), 60,
            () -> "the trace of the recall in " + Check.sortedTexts(traces));
        consumer.shutdown();
        reader.shutdown();
        producer.shutdown();
    }

    private static SendResult sendIn(DefaultMQProducer producer, String topic, String text, int seconds)
        throws Exception {
        Message message = Check.message(topic, "tag", "", text);
        message.setDelayTimeSec(seconds);
        return Check.isOk(producer.send(message));
    }

    private static boolean recallTraced(List<MessageExt> traces, String id) {
        synchronized (traces) {
            return traces.stream().map(Check::text).anyMatch(text -> text.contains("Recall\u0001")
                && text.contains(id));
        }
    }
}
