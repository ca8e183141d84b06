import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentSkipListMap;
import java.util.stream.Collectors;

import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageRequestMode;
import org.apache.rocketmq.remoting.protocol.subscription.SubscriptionGroupConfig;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/**
 * A push consumer that lets the broker assign queues: it pulls, is switched to pops, and back. What it gives back
 * or holds for too long comes again, once; what it acknowledged never does.
 */
public final class Pop {
    public static void main(String[] arguments) {
        System.setProperty("rocketmq.client.rebalance.waitInterval", "1000");
        Check.main(() -> run(arguments[0], arguments[1]));
    }

    private static void run(String nameServer, String topic) throws Exception {
        DefaultMQProducer producer = Check.producer(nameServer, "pop");
        Check.isOk(producer.send(Check.message(topic, "tag", "key", "first")));
        Check.queues(producer, topic);
        String group = topic + "-group";
        DefaultMQAdminExt admin = new DefaultMQAdminExt("pop-admin");
        admin.setNamesrvAddr(nameServer);
        admin.start();
        String broker = admin.examineTopicRouteInfo(topic).getBrokerDatas().get(0).selectBrokerAddr();
        SubscriptionGroupConfig config = new SubscriptionGroupConfig();
        config.setGroupName(group);
        admin.createAndUpdateSubscriptionGroupConfig(broker, config);

        Map<String, List<Integer>> tries = new ConcurrentSkipListMap<>();
        Map<String, Boolean> popped = new ConcurrentSkipListMap<>();
        List<String> wrong = Check.list();
        DefaultMQPushConsumer consumer = Check.consumer(nameServer, group, topic, "*");
        consumer.setClientRebalance(false);
        consumer.setPopInvisibleTime(5000);
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                String text = Check.text(message);
                int count = message.getReconsumeTimes();
                if (!topic.equals(message.getTopic())) {
                    wrong.add("topic " + message.getTopic());
                }
                popped.put(text, message.getProperty("POP_CK") != null);
                tries.computeIfAbsent(text, name -> Check.list()).add(count);
                if (text.startsWith("given-back") && count == 0) {
                    return ConsumeConcurrentlyStatus.RECONSUME_LATER;
                }
                if (text.startsWith("held") && count == 0) {
                    try {
                        Thread.sleep(6500);
                    } catch (InterruptedException stopped) {
                        Thread.currentThread().interrupt();
                    }
                }
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        Check.until(() -> tries.containsKey("first"), 90, () -> "the first message");
        Check.same(false, popped.get("first"), "popped before the mode was set");

        admin.setMessageRequestMode(broker, topic, group, MessageRequestMode.POP, 0, 3000);
        send(producer, topic, "probe");
        Check.until(() -> resend(producer, topic) && popped.containsValue(true), 60, () -> "a pop " + popped);

        for (int number = 0; number < 20; number++) {
            send(producer, topic, "good-" + number);
        }
        send(producer, topic, "given-back");
        send(producer, topic, "held");
        Check.until(() -> tries.keySet().stream().filter(text -> text.startsWith("good")).count() == 20, 90,
            () -> "good messages: " + tries);
        Check.until(() -> count(tries, "given-back") == 2 && count(tries, "held") == 2, 60,
            () -> "messages that come again: " + tries);
        Check.same(List.of(0, 1), tries.get("given-back"), "tries of a message that was given back");
        Check.same(List.of(0, 1), tries.get("held"), "tries of a message that was held too long");
        Check.that(popped.get("given-back") && popped.get("good-7"), "popped: " + popped);

        admin.setMessageRequestMode(broker, topic, group, MessageRequestMode.PULL, 0, 3000);
        Check.until(() -> resend(producer, topic) && popped.entrySet().stream()
            .anyMatch(entry -> entry.getKey().startsWith("probe-") && !entry.getValue()), 60, () -> "a pull again");
        Thread.sleep(7000); // longer than messages were invisible: nothing acknowledged comes again
        Map<String, List<Integer>> twice = tries.entrySet().stream()
            .filter(entry -> entry.getKey().startsWith("good") && entry.getValue().size() != 1)
            .collect(Collectors.toMap(Map.Entry::getKey, Map.Entry::getValue));
        Check.same(Map.of(), twice, "messages that came again");
        Check.same(List.of(), wrong, "what was wrong");
        consumer.shutdown();
        admin.shutdown();
        producer.shutdown();
    }

    private static int count(Map<String, List<Integer>> tries, String text) {
        return tries.getOrDefault(text, List.of()).size();
    }

    private static boolean resend(DefaultMQProducer producer, String topic) throws Exception {
        send(producer, topic, "probe-" + System.nanoTime());
        Thread.sleep(500);
        return true;
    }

    private static void send(DefaultMQProducer producer, String topic, String text) throws Exception {
        Check.isOk(producer.send(Check.message(topic, "tag", text, text)));
    }
}
