import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.stream.Collectors;

import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/**
 * A group in order: what it holds keeps what follows back. A reset meanwhile frees the queue: the messages come
 * again at once, and acknowledgements of the old ones move nothing.
 */
public final class Ordered {
    private static final Duration LONG = Duration.ofMinutes(10);

    public static void main(String[] arguments) {
        Grpc.main(() -> run(arguments[0], arguments[1], arguments[2]));
    }

    private static void run(String nameServer, String proxy, String topic) throws Exception {
        DefaultMQAdminExt admin = Grpc.admin(nameServer);
        Grpc.makeTopic(admin, topic, "FIFO", 1);
        String group = topic + "-group";
        Grpc.makeGroup(admin, group, true);
        Producer producer = Grpc.producer(proxy, topic);
        for (int number = 0; number < 4; number++) {
            producer.send(Grpc.builder(topic, "m-" + number).setMessageGroup("one").build());
        }
        SimpleConsumer consumer = Grpc.simple(proxy, group, topic, FilterExpression.SUB_ALL);
        List<MessageView> held = new ArrayList<>();
        Grpc.until(() -> held.addAll(consumer.receive(2, LONG)), 60, () -> "the first messages");
        Grpc.same(List.of("m-0", "m-1"), texts(held), "what came first");
        Grpc.same(List.of(), texts(consumer.receive(2, LONG)), "what comes while they are held");

        admin.resetOffsetByTimestamp(topic, group, 0, true);
        List<MessageView> again = new ArrayList<>();
        Grpc.until(() -> again.addAll(consumer.receive(2, LONG)), 60, () -> "the messages after the reset");
        Grpc.same(List.of("m-0", "m-1"), texts(again), "what came after the reset");
        for (MessageView message : held) {
            try {
                consumer.ack(message);
            } catch (Exception voided) {
                System.out.println(voided.getMessage());
            }
        }
        Grpc.same(List.of(), texts(consumer.receive(2, LONG)), "what comes after acknowledgements of the old");
        for (MessageView message : again) {
            consumer.ack(message);
        }
        List<MessageView> rest = new ArrayList<>();
        Grpc.until(() -> rest.addAll(consumer.receive(2, LONG)), 60, () -> "the messages that follow");
        Grpc.same(List.of("m-2", "m-3"), texts(rest), "what follows");
        producer.close();
        consumer.close();
        admin.shutdown();
    }

    private static List<String> texts(List<MessageView> messages) {
        return messages.stream().map(Grpc::text).collect(Collectors.toList());
    }
}
