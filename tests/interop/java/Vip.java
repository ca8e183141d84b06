import java.util.ArrayList;
import java.util.Collections;
import java.util.List;

import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.MessageExt;

/** Clients that use the VIP channel, the broker's second port, for what it is for. */
public final class Vip {
    public static void main(String[] arguments) {
        Check.main(() -> run(arguments[0], arguments[1]));
    }

    private static void run(String nameServer, String topic) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("vip");
        producer.setNamesrvAddr(nameServer);
        producer.setVipChannelEnabled(true);
        producer.start();
        List<String> sent = new ArrayList<>();
        for (int number = 0; number < 10; number++) {
            Check.isOk(producer.send(Check.message(topic, "", "", "vip " + number)));
            sent.add("vip " + number);
        }
        Collections.sort(sent);
        List<MessageExt> got = Check.list();
        DefaultMQPushConsumer consumer = Check.consumer(nameServer, topic + "-group", topic, "*");
        consumer.setVipChannelEnabled(true);
        Check.collect(consumer, got);
        Check.until(() -> got.size() >= sent.size(), 90, () -> got.size() + " of " + sent.size());
        Check.same(sent, Check.sortedTexts(got), "bodies");
        consumer.getDefaultMQPushConsumerImpl().persistConsumerOffset();
        consumer.shutdown();
        producer.shutdown();
    }
}
