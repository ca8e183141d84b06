import java.io.PrintWriter;
import java.util.ArrayList;
import java.util.List;
import java.util.TreeSet;

import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** Writes a line "queue offset body" for each message of a topic, read from every queue's offset 0 on. */
@SuppressWarnings("deprecation")
public final class Drain {
    public static void main(String[] arguments) {
        Check.main(() -> run(arguments[0], arguments[1], arguments[2]));
    }

    private static void run(String nameServer, String topic, String file) throws Exception {
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer("drain");
        consumer.setNamesrvAddr(nameServer);
        consumer.start();
        List<MessageQueue> queues = new ArrayList<>();
        Check.until(() -> {
            try {
                return queues.addAll(new TreeSet<>(consumer.fetchSubscribeMessageQueues(topic)));
            } catch (MQClientException noRouteYet) {
                return false;
            }
        }, 45, () -> "a route of " + topic);
        try (PrintWriter out = new PrintWriter(file, "UTF-8")) {
            for (MessageQueue queue : queues) {
                drain(consumer, queue, out);
            }
        }
        consumer.shutdown();
    }

    private static void drain(DefaultMQPullConsumer consumer, MessageQueue queue, PrintWriter out)
        throws Exception {
        for (long offset = 0;;) {
            PullResult result = consumer.pull(queue, "*", offset, 32);
            if (result.getPullStatus() == PullStatus.FOUND) {
                for (MessageExt message : result.getMsgFoundList()) {
                    out.println(queue.getQueueId() + " " + message.getQueueOffset() + " " + Check.text(message));
                }
                offset = result.getNextBeginOffset();
                continue;
            }
            // A slave says NO_MATCHED_MSG where a master says NO_NEW_MSG.
            Check.that(result.getMaxOffset() == offset && result.getNextBeginOffset() == offset,
                queue + " at " + offset + ": " + result);
            return;
        }
    }
}
