import java.util.Map;
import java.util.concurrent.ConcurrentSkipListMap;

import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.PushConsumer;
import org.apache.rocketmq.client.apis.message.Message;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.client.apis.producer.SendReceipt;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/** Timed messages come at their time; one that is recalled never comes. */
public final class Delay {
    public static void main(String[] arguments) {
        Grpc.main(() -> run(arguments[0], arguments[1], arguments[2]));
    }

    private static void run(String nameServer, String proxy, String topic) throws Exception {
        DefaultMQAdminExt admin = Grpc.admin(nameServer);
        Grpc.makeTopic(admin, topic, "DELAY", 4);
        String group = topic + "-group";
        Grpc.makeGroup(admin, group, false);
        Map<String, Long> early = new ConcurrentSkipListMap<>();
        PushConsumer consumer = Grpc.push(proxy, group, topic, message -> {
            early.put(Grpc.text(message), message.getDeliveryTimestamp().orElse(0L) - System.currentTimeMillis());
            return ConsumeResult.SUCCESS;
        });
        Producer producer = Grpc.producer(proxy, topic);
        producer.send(in(topic, "soon", 3));
        SendReceipt taken = producer.send(in(topic, "taken back", 8));
        producer.send(in(topic, "late", 10));
        producer.recallMessage(topic, taken.getRecallHandle());
        Grpc.until(() -> early.size() == 2, 60, () -> "got " + early);
        Grpc.same("[late, soon]", early.keySet().toString(), "what came");
        // The precision of the timer is one second by default.
        early.forEach((text, ms) -> Grpc.that(ms < 1100, text + " came " + ms + " ms before its time"));
        producer.close();
        consumer.close();
        admin.shutdown();
    }

    private static Message in(String topic, String text, int seconds) {
        return Grpc.builder(topic, text).setDeliveryTimestamp(System.currentTimeMillis() + seconds * 1000L).build();
    }
}
