import java.lang.reflect.Method;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collection;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.Callable;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.stream.Collectors;

import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** What the programs share: each prints OK and ends with 0, or says what was not so and ends with 1. */
final class Check {
    interface Body {
        void run() throws Exception;
    }

    private Check() {
    }

    static void main(Body body) {
        try {
            body.run();
        } catch (Throwable failure) {
            failure.printStackTrace(System.out);
            System.out.flush();
            Runtime.getRuntime().halt(1);
        }
        System.out.println("OK");
        System.out.flush();
        // Clients were shut down before; threads of theirs that linger must not hold the program.
        Runtime.getRuntime().halt(0);
    }

    static void that(boolean isSo, String what) {
        if (!isSo) {
            throw new AssertionError(what);
        }
    }

    static void same(Object expected, Object actual, String what) {
        that(expected.equals(actual), what + ": expected " + expected + ", got " + actual);
    }

    /** Returns once the condition holds; fails after so many seconds. */
    static void until(Callable<Boolean> condition, int seconds, Callable<String> what) throws Exception {
        long end = System.nanoTime() + seconds * 1_000_000_000L;
        while (!condition.call()) {
            that(System.nanoTime() < end, "not within " + seconds + " s: " + what.call());
            Thread.sleep(20);
        }
    }

    static DefaultMQProducer producer(String nameServer, String group) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer(group);
        producer.setNamesrvAddr(nameServer);
        producer.start();
        return producer;
    }

    /** A push consumer from the first offset on, not yet started. */
    static DefaultMQPushConsumer consumer(String nameServer, String group, String topic, String tags)
        throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        consumer.setNamesrvAddr(nameServer);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, tags);
        return consumer;
    }

    /** Starts the consumer; what it gets is added to the list. */
    static DefaultMQPushConsumer collect(DefaultMQPushConsumer consumer, Collection<MessageExt> into)
        throws Exception {
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            into.addAll(messages);
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        return consumer;
    }

    /** The queues of a new topic, once the name server tells them. */
    static List<MessageQueue> queues(DefaultMQProducer producer, String topic) throws Exception {
        List<MessageQueue> queues = new ArrayList<>();
        until(() -> {
            try {
                return queues.addAll(producer.fetchPublishMessageQueues(topic));
            } catch (MQClientException noRouteYet) {
                return false;
            }
        }, 45, () -> "a route of " + topic);
        return queues;
    }

    /** The two lines keep the enum of message models in different packages. */
    static void setBroadcasting(DefaultMQPushConsumer consumer) throws Exception {
        for (Method method : DefaultMQPushConsumer.class.getMethods()) {
            if (method.getName().equals("setMessageModel")) {
                for (Object model : method.getParameterTypes()[0].getEnumConstants()) {
                    if (model.toString().equals("BROADCASTING")) {
                        method.invoke(consumer, model);
                        return;
                    }
                }
            }
        }
        throw new AssertionError("no message model BROADCASTING");
    }

    static <T> List<T> list() {
        return new CopyOnWriteArrayList<>();
    }

    static Message message(String topic, String tags, String keys, String body) {
        return new Message(topic, tags, keys, body.getBytes(StandardCharsets.UTF_8));
    }

    static String text(MessageExt message) {
        return new String(message.getBody(), StandardCharsets.UTF_8);
    }

    static List<String> sortedTexts(Collection<MessageExt> messages) {
        synchronized (messages) {
            return messages.stream().map(Check::text).sorted().collect(Collectors.toList());
        }
    }

    static SendResult isOk(SendResult result) {
        same(SendStatus.SEND_OK, result.getSendStatus(), "status of a send");
        return result;
    }

    /** Every queue of the list holds the offsets 0, 1, 2 ... once. */
    static void offsetsAreDense(Collection<MessageExt> messages) {
        Map<Integer, List<Long>> offsets = new TreeMap<>();
        for (MessageExt message : messages) {
            offsets.computeIfAbsent(message.getQueueId(), id -> new ArrayList<>()).add(message.getQueueOffset());
        }
        offsets.forEach((queue, found) -> {
            Collections.sort(found);
            for (int index = 0; index < found.size(); index++) {
                same((long) index, found.get(index), "offset number " + index + " in queue " + queue);
            }
        });
    }
}
