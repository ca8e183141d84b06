import java.util.ArrayList;
import java.util.Collections;
import java.util.List;

import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.remoting.RPCHook;

/** Sends and consumes signed and, when asked, over TLS; with a wrong secret the broker must say why not. */
public final class Secure {
    public static void main(String[] arguments) {
        Check.main(() -> run(arguments[0], arguments[1], arguments[2], arguments[3], arguments[4].equals("tls")));
    }

    private static void run(String nameServer, String topic, String key, String secret, boolean isTls)
        throws Exception {
        boolean isSigned = !key.equals("-");
        DefaultMQProducer producer = producer(nameServer, isSigned ? hook(key, secret) : null, isTls);
        List<String> sent = new ArrayList<>();
        for (int number = 0; number < 20; number++) {
            Check.isOk(producer.send(Check.message(topic, "tag", "key" + number, "secure " + number + " é漢")));
            sent.add("secure " + number + " é漢");
        }
        String big = String.join("", Collections.nCopies(100_000, "0123456789"));
        Check.isOk(producer.send(Check.message(topic, "tag", "big", big)));
        sent.add(big);
        producer.shutdown();
        Collections.sort(sent);

        List<MessageExt> got = Check.list();
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(
            topic + "-group", isSigned ? hook(key, secret) : null, new AllocateMessageQueueAveragely());
        consumer.setNamesrvAddr(nameServer);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setUseTLS(isTls);
        consumer.subscribe(topic, "tag");
        Check.collect(consumer, got);
        Check.until(() -> got.size() >= sent.size(), 40, () -> got.size() + " of " + sent.size());
        Check.same(sent, Check.sortedTexts(got), "bodies");
        consumer.shutdown();
        if (isSigned) {
            refused(nameServer, topic, hook(key, secret + "x"), "signature", isTls);
            refused(nameServer, topic, hook("stranger", secret), "stranger", isTls);
            refused(nameServer, topic, null, "not signed", isTls);
            refused(nameServer, "Forbidden", hook(key, secret), "may not Pub Topic:Forbidden", isTls);
        }
    }

    private static void refused(String nameServer, String topic, RPCHook hook, String reason, boolean isTls)
        throws Exception {
        DefaultMQProducer producer = producer(nameServer, hook, isTls);
        producer.setRetryTimesWhenSendFailed(0);
        try {
            producer.send(Check.message(topic, "tag", "key", "text"));
            Check.that(false, "sent, though " + reason);
        } catch (MQBrokerException | MQClientException thrown) {
            boolean isWrapped = thrown.getCause() instanceof MQBrokerException;
            MQBrokerException error = (MQBrokerException) (isWrapped ? thrown.getCause() : thrown);
            Check.same(16, error.getResponseCode(), "code when " + reason);
            Check.that(error.getMessage().contains(reason), error.getMessage() + ": without " + reason);
        } finally {
            producer.shutdown();
        }
    }

    private static DefaultMQProducer producer(String nameServer, RPCHook hook, boolean isTls) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("secure", hook);
        producer.setNamesrvAddr(nameServer);
        producer.setInstanceName("secure-" + System.nanoTime());
        producer.setUseTLS(isTls);
        producer.start();
        return producer;
    }

    private static RPCHook hook(String key, String secret) {
        return new AclClientRPCHook(new SessionCredentials(key, secret));
    }
}
