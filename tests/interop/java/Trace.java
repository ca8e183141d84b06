import java.util.List;

import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;

/** Traces of a send and of its consumption are in the trace topic, under the message's id and key. */
public final class Trace {
    private static final String TOPIC = "RMQ_SYS_TRACE_TOPIC";

    public static void main(String[] arguments) {
        Check.main(() -> run(arguments[0], arguments[1]));
    }

    private static void run(String nameServer, String topic) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer(topic + "-producers", true, null);
        producer.setNamesrvAddr(nameServer);
        producer.start();
        SendResult sent = Check.isOk(producer.send(Check.message(topic, "tag", topic + "-key", "traced")));
        Check.that(sent.isTraceOn(), "the broker wants traces");
        Check.same("DefaultRegion", sent.getRegionId(), "region");

        List<MessageExt> got = Check.list();
        String group = topic + "-group";
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group, true, null);
        consumer.setNamesrvAddr(nameServer);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        Check.collect(consumer, got);
        Check.until(() -> got.size() == 1, 90, () -> "the message");

        // Traces are sent in the background, to a topic that the first of them makes.
        List<MessageExt> traces = Check.list();
        DefaultMQPushConsumer reader = Check.collect(
            Check.consumer(nameServer, topic + "-reader", TOPIC, "*"), traces);
        String id = sent.getMsgId();
        for (String kind : new String[] {"Pub", "SubBefore", "SubAfter"}) {
            Check.until(() -> has(traces, kind, id), 60, () -> kind + " of " + id + " in " + traces.size());
        }
        MessageExt first = traces.stream().filter(trace -> Check.text(trace).startsWith("Pub")
            && Check.text(trace).contains(id)).findFirst().get();
        Check.that(first.getKeys().contains(id), "the id is a key of the trace");
        Check.that(first.getKeys().contains(topic + "-key"), "the key is a key of the trace");
        Check.until(() -> found(producer, id), 20, () -> "the trace by its key");
        reader.shutdown();
        consumer.shutdown();
        producer.shutdown();
    }

    private static boolean has(List<MessageExt> traces, String kind, String id) {
        synchronized (traces) {
            return traces.stream().anyMatch(trace -> Check.text(trace).contains(kind + "\u0001")
                && Check.text(trace).contains(id));
        }
    }

    private static boolean found(DefaultMQProducer producer, String id) throws Exception {
        try {
            long now = System.currentTimeMillis();
            return !producer.queryMessage(TOPIC, id, 32, now - 120_000, now + 60_000).getMessageList().isEmpty();
        } catch (org.apache.rocketmq.client.exception.MQClientException noMessageYet) {
            return false;
        }
    }
}
