import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Callable;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.stream.Collectors;

import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.MessageListener;
import org.apache.rocketmq.client.apis.consumer.PushConsumer;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.Message;
import org.apache.rocketmq.client.apis.message.MessageBuilder;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.remoting.protocol.body.ClusterInfo;
import org.apache.rocketmq.remoting.protocol.subscription.SubscriptionGroupConfig;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/** What the programs share: each prints OK and ends with 0, or says what was not so and ends with 1. */
final class Grpc {
    interface Body {
        void run() throws Exception;
    }

    static final ClientServiceProvider PROVIDER = ClientServiceProvider.loadService();

    private Grpc() {
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

    static DefaultMQAdminExt admin(String nameServer) throws Exception {
        DefaultMQAdminExt admin = new DefaultMQAdminExt("grpc-admin-" + System.nanoTime());
        admin.setNamesrvAddr(nameServer);
        admin.setInstanceName("admin-" + System.nanoTime());
        admin.start();
        return admin;
    }

    static String broker(DefaultMQAdminExt admin) throws Exception {
        ClusterInfo info = admin.examineBrokerClusterInfo();
        return info.getBrokerAddrTable().get("broker-a").selectBrokerAddr();
    }

    /** A topic of this message type; the proxy knows no other. */
    static void makeTopic(DefaultMQAdminExt admin, String topic, String type, int queues) throws Exception {
        TopicConfig config = new TopicConfig(topic, queues, queues);
        Map<String, String> attributes = new HashMap<>();
        attributes.put("+message.type", type);
        config.setAttributes(attributes);
        admin.createAndUpdateTopicConfig(broker(admin), config);
        until(() -> {
            try {
                return !admin.examineTopicRouteInfo(topic).getQueueDatas().isEmpty();
            } catch (org.apache.rocketmq.client.exception.MQClientException noRouteYet) {
                return false;
            }
        }, 45, () -> "a route of " + topic);
    }

    static void makeGroup(DefaultMQAdminExt admin, String group, boolean isOrderly) throws Exception {
        SubscriptionGroupConfig config = new SubscriptionGroupConfig();
        config.setGroupName(group);
        config.setConsumeMessageOrderly(isOrderly);
        admin.createAndUpdateSubscriptionGroupConfig(broker(admin), config);
    }

    static ClientConfiguration at(String proxy) {
        return ClientConfiguration.newBuilder().setEndpoints(proxy).enableSsl(false)
            .setRequestTimeout(Duration.ofSeconds(20)).build();
    }

    static Producer producer(String proxy, String topic) throws Exception {
        return PROVIDER.newProducerBuilder().setClientConfiguration(at(proxy)).setTopics(topic).build();
    }

    static SimpleConsumer simple(String proxy, String group, String topic, FilterExpression filter)
        throws Exception {
        return PROVIDER.newSimpleConsumerBuilder().setClientConfiguration(at(proxy)).setConsumerGroup(group)
            .setAwaitDuration(Duration.ofSeconds(5))
            .setSubscriptionExpressions(Collections.singletonMap(topic, filter)).build();
    }

    static PushConsumer push(String proxy, String group, String topic, MessageListener listener)
        throws Exception {
        return PROVIDER.newPushConsumerBuilder().setClientConfiguration(at(proxy)).setConsumerGroup(group)
            .setSubscriptionExpressions(Collections.singletonMap(topic, FilterExpression.SUB_ALL))
            .setMessageListener(listener).build();
    }

    static MessageBuilder builder(String topic, String text) {
        return PROVIDER.newMessageBuilder().setTopic(topic).setBody(text.getBytes(StandardCharsets.UTF_8));
    }

    static Message message(String topic, String text) {
        return builder(topic, text).build();
    }

    static String text(MessageView message) {
        return StandardCharsets.UTF_8.decode(message.getBody().duplicate()).toString();
    }

    static List<String> sortedTexts(Collection<MessageView> messages) {
        return messages.stream().map(Grpc::text).sorted().collect(Collectors.toList());
    }

    /** Receives until so many are there; what comes twice stays twice. */
    static List<MessageView> receive(SimpleConsumer consumer, int count, int seconds, Duration invisible)
        throws Exception {
        List<MessageView> got = new ArrayList<>();
        until(() -> got.addAll(consumer.receive(16, invisible)) && got.size() >= count || got.size() >= count,
            seconds, () -> count + " messages, got " + sortedTexts(got));
        return got;
    }

    static <T> List<T> list() {
        return new CopyOnWriteArrayList<>();
    }
}
