import java.util.List;

import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/** A producer and a consumer that stay connected until standard input ends, for the tools to look at. */
public final class Stay {
    public static void main(String[] arguments) {
        Check.main(() -> run(arguments[0], arguments[1]));
    }

    private static void run(String nameServer, String topic) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer(topic + "-producers", true, null); // with traces
        producer.setNamesrvAddr(nameServer);
        producer.start();
        producer.setSendMsgTimeout(20_000); // the first send of a cold JVM on a busy machine
        SendResult first = null;
        for (int number = 0; number < 12; number++) {
            Message message = Check.message(topic, "tag-a", "key-" + number, "text " + number);
            SendResult result = Check.isOk(producer.send(message,
                (queues, sent, index) -> queues.get((Integer) index % queues.size()), number));
            first = first == null ? result : first;
        }
        List<MessageExt> got = Check.list();
        DefaultMQPushConsumer consumer =
            Check.collect(Check.consumer(nameServer, topic + "-group", topic, "*"), got);
        Check.until(() -> got.size() == 12, 60, () -> got.size() + " of 12");
        consumer.getDefaultMQPushConsumerImpl().persistConsumerOffset();
        System.out.println("READY " + first.getMsgId() + " " + first.getOffsetMsgId() + " "
            + consumer.getDefaultMQPushConsumerImpl().getmQClientFactory().getClientId());
        System.out.flush();
        while (System.in.read() >= 0) {
            continue;
        }
        consumer.shutdown();
        producer.shutdown();
    }
}
