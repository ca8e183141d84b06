import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;

import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Sends and consumes until standard input ends, while the master is replaced. What was acknowledged has to be
 * received at the place that the acknowledgement named, and no place may be named twice.
 */
public final class Switch {
    private static final int POLL_ROUTES_MS = 1_000;

    private final Map<String, String> acknowledged = new ConcurrentHashMap<>();
    private final List<String> twice = Check.list();
    private final AtomicInteger failed = new AtomicInteger();
    private final AtomicLong longestNanos = new AtomicLong();
    private final AtomicBoolean isSending = new AtomicBoolean(true);

    public static void main(String[] arguments) {
        Check.main(() -> new Switch().run(arguments[0], arguments[1]));
    }

    private void run(String nameServer, String topic) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("switch");
        producer.setNamesrvAddr(nameServer);
        producer.setPollNameServerInterval(POLL_ROUTES_MS);
        producer.start();
        List<MessageExt> got = Check.list();
        DefaultMQPushConsumer consumer = Check.consumer(nameServer, topic + "-group", topic, "*");
        consumer.setPollNameServerInterval(POLL_ROUTES_MS);
        Check.collect(consumer, got);
        Thread load = new Thread(() -> send(producer, topic));
        load.start();
        Check.until(() -> acknowledged.size() >= 20 && !got.isEmpty(), 60, () -> "the first sends");
        System.out.println("READY");
        System.out.flush();
        // Each line asks whether sends and deliveries have gone on since the one before.
        while (System.in.read() >= 0) {
            int sent = acknowledged.size();
            int received = got.size();
            Check.until(() -> acknowledged.size() >= sent + 50 && got.size() >= received + 50, 60,
                () -> acknowledged.size() - sent + " acknowledged, " + (got.size() - received) + " received");
            System.out.println("GOES ON after at most " + longestNanos.getAndSet(0) / 1_000_000 + " ms");
            System.out.flush();
        }
        isSending.set(false);
        load.join();
        Check.until(() -> texts(got).keySet().containsAll(acknowledged.keySet()), 90, () -> "missing: " + missing(got));
        Check.that(twice.isEmpty(), "acknowledged twice at one place: " + twice);
        Map<String, String> texts = texts(got);
        acknowledged.forEach((place, text) -> Check.same(text, texts.get(place), "text at " + place));
        System.out.println("acknowledged " + acknowledged.size() + ", received " + got.size() + ", failed "
            + failed.get());
        consumer.shutdown();
        producer.shutdown();
    }

    /** A text whose send failed is sent again: as itself, so that it may be stored more than once. */
    private void send(DefaultMQProducer producer, String topic) {
        long before = System.nanoTime();
        for (int number = 0; isSending.get();) {
            try {
                SendResult result = producer.send(Check.message(topic, "", "", "" + number));
                if (result.getSendStatus() == SendStatus.SEND_OK) {
                    String place = result.getMessageQueue().getQueueId() + "/" + result.getQueueOffset();
                    String other = acknowledged.put(place, "" + number);
                    if (other != null) {
                        twice.add(place + ": " + other + " and " + number);
                    }
                    number++;
                    long now = System.nanoTime();
                    long gap = now - before;
                    longestNanos.accumulateAndGet(gap, Math::max);
                    before = now;
                } else {
                    failed.incrementAndGet();
                }
                Thread.sleep(5);
            } catch (InterruptedException stop) {
                return;
            } catch (Exception refused) {
                failed.incrementAndGet();
                pause();
            }
        }
    }

    private static void pause() {
        try {
            Thread.sleep(50);
        } catch (InterruptedException stop) {
            Thread.currentThread().interrupt();
        }
    }

    private static Map<String, String> texts(List<MessageExt> got) {
        Map<String, String> texts = new HashMap<>();
        synchronized (got) {
            got.forEach(one -> texts.put(one.getQueueId() + "/" + one.getQueueOffset(), Check.text(one)));
        }
        return texts;
    }

    private String missing(List<MessageExt> got) {
        Map<String, String> left = new HashMap<>(acknowledged);
        left.keySet().removeAll(texts(got).keySet());
        return left.size() + " of " + acknowledged.size() + ": " + left;
    }
}
