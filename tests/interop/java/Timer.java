import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;

import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/** Messages for a time of the sender's choice (5.x only), given in its three forms. */
public final class Timer {
    public static void main(String[] arguments) {
        Check.main(() -> run(arguments[0], arguments[1]));
    }

    private static void run(String nameServer, String topic) throws Exception {
        DefaultMQProducer producer = Check.producer(nameServer, "timer");
        Check.isOk(producer.send(Check.message(topic, "", "", "0")));
        Map<String, Long> after = new ConcurrentHashMap<>();
        DefaultMQPushConsumer consumer = Check.consumer(nameServer, topic + "-group", topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                after.put(Check.text(message), System.currentTimeMillis() - message.getBornTimestamp());
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        Check.until(() -> after.size() == 1, 90, () -> "the message without delay");
        Message inSeconds = Check.message(topic, "", "", "2000");
        inSeconds.setDelayTimeSec(2);
        Message inMillis = Check.message(topic, "", "", "3000");
        inMillis.setDelayTimeMs(3000);
        Message atTime = Check.message(topic, "", "", "4000");
        atTime.setDeliverTimeMs(System.currentTimeMillis() + 4000);
        for (Message message : new Message[] {inSeconds, inMillis, atTime}) {
            Check.isOk(producer.send(message));
        }
        Check.until(() -> after.size() == 4, 90, () -> "got " + after);
        consumer.shutdown();
        producer.shutdown();
        System.out.println(after);
        after.forEach((wanted, delay) -> {
            long least = Long.parseLong(wanted);
            // The precision of the timer is one second by default.
            Check.that(least == 0 || delay >= least - 1100 && delay < least + 4000,
                wanted + " came after " + delay + " ms");
        });
    }
}
