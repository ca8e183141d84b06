import java.util.ArrayList;
import java.util.Collections;
import java.util.HashSet;
import java.util.List;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;

import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** Synchronous, asynchronous, one-way and batch sends, and a body that the client compresses. */
public final class Sends {
    public static void main(String[] arguments) {
        Check.main(() -> run(arguments[0], arguments[1]));
    }

    private static void run(String nameServer, String topic) throws Exception {
        DefaultMQProducer producer = Check.producer(nameServer, "sends");
        List<String> sent = new ArrayList<>();
        for (int number = 0; number < 40; number++) {
            Message message = Check.message(topic, "T" + number % 3, "k" + number, "sync " + number + " é漢");
            message.putUserProperty("number", "" + number);
            SendResult result = Check.isOk(producer.send(message));
            Check.same(topic, result.getMessageQueue().getTopic(), "topic of the answer");
            sent.add("sync " + number + " é漢");
        }
        sent.addAll(sendAsync(producer, topic));
        sent.addAll(sendBatch(producer, topic));
        sent.addAll(sendToQueue(producer, topic));
        String big = String.join("", Collections.nCopies(20_000, "0123456789"));
        Check.isOk(producer.send(Check.message(topic, "big", "big", big)));
        sent.add(big);
        for (int number = 0; number < 10; number++) {
            producer.sendOneway(Check.message(topic, "one-way", "", "one-way " + number));
            sent.add("one-way " + number);
        }

        List<MessageExt> got = Check.list();
        DefaultMQPushConsumer consumer =
            Check.collect(Check.consumer(nameServer, topic + "-group", topic, "*"), got);
        Check.until(() -> got.size() >= sent.size(), 90, () -> got.size() + " of " + sent.size() + " received");
        consumer.shutdown();
        producer.shutdown();

        Collections.sort(sent);
        Check.same(sent, Check.sortedTexts(got), "bodies");
        Check.offsetsAreDense(got);
        for (MessageExt message : got) {
            String number = message.getUserProperty("number");
            if (number != null) {
                Check.same("k" + number, message.getKeys(), "keys");
                Check.same("T" + Integer.parseInt(number) % 3, message.getTags(), "tags");
            }
            Check.same(0, message.getReconsumeTimes(), "retries");
            Check.that(message.getStoreTimestamp() >= message.getBornTimestamp() - 1000, "store time");
        }
        // Brokers of 5.3.3 and before give all messages of a batch the batch's id; ours keeps their own.
        HashSet<String> ids = new HashSet<>();
        got.stream().filter(message -> !"batch".equals(message.getTags())).forEach(
            message -> Check.that(ids.add(message.getMsgId()), "message id twice: " + message));
    }

    private static List<String> sendAsync(DefaultMQProducer producer, String topic) throws Exception {
        ConcurrentLinkedQueue<Throwable> failures = new ConcurrentLinkedQueue<>();
        CountDownLatch open = new CountDownLatch(30);
        List<String> sent = new ArrayList<>();
        for (int number = 0; number < 30; number++) {
            producer.send(Check.message(topic, "async", "", "async " + number), new SendCallback() {
                @Override
                public void onSuccess(SendResult result) {
                    Check.isOk(result);
                    open.countDown();
                }

                @Override
                public void onException(Throwable failure) {
                    failures.add(failure);
                    open.countDown();
                }
            });
            sent.add("async " + number);
        }
        Check.that(open.await(10, TimeUnit.SECONDS), "asynchronous sends were answered");
        Check.that(failures.isEmpty(), "asynchronous sends: " + failures);
        return sent;
    }

    private static List<String> sendBatch(DefaultMQProducer producer, String topic) throws Exception {
        List<Message> batch = new ArrayList<>();
        List<String> sent = new ArrayList<>();
        for (int number = 0; number < 12; number++) {
            batch.add(Check.message(topic, "batch", "b" + number, "batch " + number));
            sent.add("batch " + number);
        }
        SendResult result = Check.isOk(producer.send(batch));
        Check.same(12, result.getMsgId().split(",").length, "unique ids of a batch");
        Check.same(12, result.getOffsetMsgId().split(",").length, "offset ids of a batch");
        return sent;
    }

    private static List<String> sendToQueue(DefaultMQProducer producer, String topic) throws Exception {
        List<MessageQueue> queues = Check.queues(producer, topic);
        Check.same(4, queues.size(), "queues of a topic made by a send");
        List<String> sent = new ArrayList<>();
        for (MessageQueue queue : queues) {
            long before = producer.maxOffset(queue);
            SendResult result = Check.isOk(
                producer.send(Check.message(topic, "queue", "", "queue " + queue.getQueueId()), queue));
            Check.same(queue, result.getMessageQueue(), "queue of the answer");
            Check.same(before, result.getQueueOffset(), "offset of the answer");
            sent.add("queue " + queue.getQueueId());
        }
        return sent;
    }
}
