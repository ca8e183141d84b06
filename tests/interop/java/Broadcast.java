import java.util.ArrayList;
import java.util.Collections;
import java.util.List;

import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.MessageExt;

/** Each consumer of a broadcasting group gets everything. */
public final class Broadcast {
    public static void main(String[] arguments) {
        Check.main(() -> run(arguments[0], arguments[1]));
    }

    private static void run(String nameServer, String topic) throws Exception {
        DefaultMQProducer producer = Check.producer(nameServer, "broadcast");
        List<String> sent = new ArrayList<>();
        for (int number = 0; number < 30; number++) {
            Check.isOk(producer.send(Check.message(topic, "", "", "broadcast " + number)));
            sent.add("broadcast " + number);
        }
        Collections.sort(sent);
        List<DefaultMQPushConsumer> consumers = new ArrayList<>();
        List<List<MessageExt>> lists = new ArrayList<>();
        for (int number = 0; number < 2; number++) {
            DefaultMQPushConsumer consumer = Check.consumer(nameServer, topic + "-group", topic, "*");
            consumer.setInstanceName(topic + number);
            Check.setBroadcasting(consumer);
            lists.add(Check.list());
            consumers.add(Check.collect(consumer, lists.get(number)));
        }
        for (List<MessageExt> list : lists) {
            Check.until(() -> list.size() >= sent.size(), 90, () -> list.size() + " of " + sent.size());
            Check.same(sent, Check.sortedTexts(list), "bodies");
        }
        consumers.forEach(DefaultMQPushConsumer::shutdown);
        producer.shutdown();
    }
}
