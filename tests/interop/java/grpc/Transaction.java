import java.util.Set;
import java.util.concurrent.ConcurrentSkipListSet;

import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.PushConsumer;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.client.apis.producer.TransactionResolution;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/** A transaction that is committed is seen, one that is rolled back is not. */
public final class Transaction {
    public static void main(String[] arguments) {
        Grpc.main(() -> run(arguments[0], arguments[1], arguments[2]));
    }

    private static void run(String nameServer, String proxy, String topic) throws Exception {
        DefaultMQAdminExt admin = Grpc.admin(nameServer);
        Grpc.makeTopic(admin, topic, "TRANSACTION", 4);
        String group = topic + "-group";
        Grpc.makeGroup(admin, group, false);
        Set<String> got = new ConcurrentSkipListSet<>();
        PushConsumer consumer = Grpc.push(proxy, group, topic, message -> {
            got.add(Grpc.text(message));
            return ConsumeResult.SUCCESS;
        });
        Producer producer = Grpc.PROVIDER.newProducerBuilder().setClientConfiguration(Grpc.at(proxy))
            .setTopics(topic).setTransactionChecker(message -> TransactionResolution.COMMIT).build();
        for (String decision : new String[] {"rolled back", "committed"}) {
            var transaction = producer.beginTransaction();
            producer.send(Grpc.message(topic, decision), transaction);
            if (decision.equals("committed")) {
                transaction.commit();
            } else {
                transaction.rollback();
            }
        }
        Grpc.until(() -> got.contains("committed"), 60, () -> "got " + got);
        Grpc.same(Set.of("committed"), Set.copyOf(got), "what is seen");
        producer.close();
        consumer.close();
        admin.shutdown();
    }
}
