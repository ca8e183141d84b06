import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;

import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;

/**
 * Sends until standard input ends, with a producer as it comes: it looks up routes every 30 s. No send may fail,
 * need a second try, or be acknowledged at a place that another one has.
 */
public final class HandOver {
    private static final int LINGER_MS = 35_000;

    private final Map<String, Integer> places = new ConcurrentHashMap<>();
    private final AtomicInteger count = new AtomicInteger();
    private final AtomicLong longestNanos = new AtomicLong();
    private volatile boolean isSending = true;
    private volatile Exception failure;

    public static void main(String[] arguments) {
        Check.main(() -> new HandOver().run(arguments[0], arguments[1]));
    }

    private void run(String nameServer, String topic) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("hand-over");
        producer.setNamesrvAddr(nameServer);
        producer.setRetryTimesWhenSendFailed(0);
        producer.start();
        Thread load = new Thread(() -> send(producer, topic));
        load.start();
        Check.until(() -> count.get() >= 20, 60, () -> "the first sends: " + failure);
        System.out.println("READY");
        System.out.flush();
        for (int line = System.in.read(); line >= 0; line = System.in.read()) {
            int sent = count.get();
            Check.until(() -> count.get() >= sent + 50, 60, () -> count.get() - sent + " sent, " + failure);
            System.out.println("GOES ON after at most " + longestNanos.getAndSet(0) / 1_000_000 + " ms");
            System.out.flush();
        }
        // By then it has looked up the route, and sends to the new master itself.
        Thread.sleep(LINGER_MS);
        isSending = false;
        load.join();
        Check.that(failure == null, "a send failed: " + failure);
        System.out.println("sent " + count.get());
        producer.shutdown();
    }

    private void send(DefaultMQProducer producer, String topic) {
        long before = System.nanoTime();
        try {
            while (isSending) {
                SendResult result = producer.send(Check.message(topic, "", "", "" + count.get()));
                if (result.getSendStatus() != SendStatus.SEND_OK) {
                    throw new IllegalStateException(result.toString());
                }
                String place = result.getMessageQueue().getQueueId() + "/" + result.getQueueOffset();
                Integer other = places.put(place, count.get());
                if (other != null) {
                    throw new IllegalStateException(place + " for " + other + " and " + count.get());
                }
                count.incrementAndGet();
                long now = System.nanoTime();
                long gap = now - before;
                longestNanos.accumulateAndGet(gap, Math::max);
                before = now;
                Thread.sleep(5);
            }
        } catch (Exception error) {
            failure = error;
        }
    }
}
