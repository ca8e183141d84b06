import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentSkipListMap;

import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.PushConsumer;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/**
 * A push consumer of a group that nobody used before: every message once; one that its listener failed for comes
 * again with a higher count.
 */
public final class Push {
    public static void main(String[] arguments) {
        Grpc.main(() -> run(arguments[0], arguments[1], arguments[2]));
    }

    private static void run(String nameServer, String proxy, String topic) throws Exception {
        DefaultMQAdminExt admin = Grpc.admin(nameServer);
        Grpc.makeTopic(admin, topic, "NORMAL", 4);
        String group = topic + "-group";
        Map<String, List<Integer>> tries = new ConcurrentSkipListMap<>();
        PushConsumer consumer = Grpc.push(proxy, group, topic, message -> {
            String text = Grpc.text(message);
            tries.computeIfAbsent(text, name -> Grpc.list()).add(message.getDeliveryAttempt());
            return text.equals("m-3") && message.getDeliveryAttempt() == 1
                ? ConsumeResult.FAILURE : ConsumeResult.SUCCESS;
        });
        Producer producer = Grpc.producer(proxy, topic);
        for (int number = 0; number < 20; number++) {
            producer.send(Grpc.message(topic, "m-" + number));
        }
        Grpc.until(() -> tries.size() == 20 && tries.get("m-3").size() == 2, 90, () -> "got " + tries);
        Map<String, List<Integer>> wanted = new TreeMap<>();
        for (int number = 0; number < 20; number++) {
            wanted.put("m-" + number, number == 3 ? List.of(1, 2) : List.of(1));
        }
        Map<String, List<Integer>> found = new TreeMap<>();
        tries.forEach((text, counts) -> found.put(text, new ArrayList<>(counts)));
        Grpc.same(wanted, found, "tries");
        producer.close();
        consumer.close();
        admin.shutdown();
    }
}
