import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;

import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/** Transactions that are committed, rolled back, left open, or whose work fails; the broker asks about these. */
public final class Transactions {
    private static final int COUNT = 12;

    public static void main(String[] arguments) {
        Check.main(() -> run(arguments[0], arguments[1]));
    }

    private static void run(String nameServer, String topic) throws Exception {
        Set<String> asked = ConcurrentHashMap.newKeySet();
        TransactionMQProducer producer = new TransactionMQProducer(topic + "-producer");
        producer.setNamesrvAddr(nameServer);
        producer.setHeartbeatBrokerInterval(1000);
        producer.setTransactionListener(new TransactionListener() {
            @Override
            public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
                String kind = (String) argument;
                if (kind.equals("fails")) {
                    throw new IllegalStateException("the work fails");
                }
                return kind.equals("commit") ? LocalTransactionState.COMMIT_MESSAGE
                    : kind.equals("rollback") ? LocalTransactionState.ROLLBACK_MESSAGE
                    : LocalTransactionState.UNKNOW;
            }

            @Override
            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                String text = Check.text(message);
                asked.add(text);
                Check.same(topic, message.getTopic(), "topic of a check");
                return text.startsWith("asked-no") ? LocalTransactionState.ROLLBACK_MESSAGE
                    : LocalTransactionState.COMMIT_MESSAGE;
            }
        });
        producer.start();
        List<String> wanted = new ArrayList<>();
        for (int number = 0; number < COUNT; number++) {
            for (String kind : new String[] {"commit", "rollback", "asked-yes", "asked-no", "fails"}) {
                String text = kind + " " + number;
                producer.sendMessageInTransaction(Check.message(topic, "tag", "key" + number, text), kind);
                if (!kind.equals("rollback") && !kind.equals("asked-no")) {
                    wanted.add(text);
                }
            }
        }
        Collections.sort(wanted);
        List<MessageExt> got = Check.list();
        DefaultMQPushConsumer consumer =
            Check.collect(Check.consumer(nameServer, topic + "-group", topic, "tag"), got);
        Check.until(() -> got.size() >= wanted.size() && asked.size() >= 3 * COUNT, 120,
            () -> got.size() + " of " + wanted.size() + ", asked about " + asked.size());
        Thread.sleep(2000);
        Check.same(wanted, Check.sortedTexts(got), "bodies");
        for (MessageExt message : got) {
            Check.that(message.getPreparedTransactionOffset() > 0 || Check.text(message).equals("commit 0"),
                "prepared offset of " + message);
            Check.same("tag", message.getTags(), "tags");
        }
        consumer.shutdown();
        producer.shutdown();
    }
}
