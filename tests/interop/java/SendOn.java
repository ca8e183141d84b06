import java.io.PrintStream;
import java.util.concurrent.atomic.AtomicBoolean;

import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;

/**
 * Sends one message after the other until standard input ends, whatever becomes of them, and prints what did:
 *
 * <pre>
 * BEGUN number nanoseconds
 * OK number nanoseconds queue-id queue-offset message-id
 * FAILED number nanoseconds reason
 * </pre>
 *
 * A body is its number, a space and a filler. Nothing is sent again that the producer does not send again by itself.
 * It looks up routes every second, and is as it comes otherwise.
 */
public final class SendOn {
    private static final int POLL_ROUTES_MS = 1_000;
    private static final int PAUSE_MS = 10;
    private static final int PAUSE_AFTER_FAILURE_MS = 50;

    private final AtomicBoolean isSending = new AtomicBoolean(true);
    private final PrintStream out = new PrintStream(System.out, true);

    public static void main(String[] arguments) {
        Check.main(() -> new SendOn().run(arguments[0], arguments[1], Long.parseLong(arguments[2]), arguments[3]));
    }

    private void run(String nameServer, String topic, long first, String filler) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("send-on");
        producer.setNamesrvAddr(nameServer);
        producer.setPollNameServerInterval(POLL_ROUTES_MS);
        producer.start();
        Thread load = new Thread(() -> sendAll(producer, topic, first, filler));
        load.start();
        while (System.in.read() >= 0) {
            continue;
        }
        isSending.set(false);
        load.join();
        producer.shutdown();
    }

    private void sendAll(DefaultMQProducer producer, String topic, long first, String filler) {
        try {
            for (long number = first; isSending.get(); number++) {
                out.println("BEGUN " + number + " " + System.nanoTime());
                boolean isOk = send(producer, topic, number, filler);
                Thread.sleep(isOk ? PAUSE_MS : PAUSE_AFTER_FAILURE_MS);
            }
        } catch (InterruptedException stop) {
            Thread.currentThread().interrupt();
        }
    }

    private static Throwable firstCause(Throwable failure) {
        return failure.getCause() == null ? failure : firstCause(failure.getCause());
    }

    private boolean send(DefaultMQProducer producer, String topic, long number, String filler)
        throws InterruptedException {
        String reason;
        try {
            SendResult result = producer.send(Check.message(topic, "", "", number + " " + filler));
            if (result.getSendStatus() == SendStatus.SEND_OK) {
                out.println("OK " + number + " " + System.nanoTime() + " " + result.getMessageQueue().getQueueId()
                    + " " + result.getQueueOffset() + " " + result.getOffsetMsgId());
                return true;
            }
            reason = result.getSendStatus().toString();
        } catch (InterruptedException stop) {
            throw stop;
        } catch (Exception refused) {
            reason = firstCause(refused).toString();
        }
        out.println("FAILED " + number + " " + System.nanoTime() + " " + reason.replaceAll("\\s+", " "));
        return false;
    }
}
