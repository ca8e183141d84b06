import java.util.List;

import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageRequestMode;
import org.apache.rocketmq.remoting.protocol.subscription.SubscriptionGroupConfig;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/** Groups that nobody has used are made by use: by the question for their settings, and by their request mode. */
public final class NewGroup {
    public static void main(String[] arguments) {
        System.setProperty("rocketmq.client.rebalance.waitInterval", "1000");
        Check.main(() -> run(arguments[0], arguments[1]));
    }

    private static void run(String nameServer, String topic) throws Exception {
        DefaultMQProducer producer = Check.producer(nameServer, "new-group");
        Check.isOk(producer.send(Check.message(topic, "tag", "key", "first")));
        Check.queues(producer, topic);
        DefaultMQAdminExt admin = new DefaultMQAdminExt("new-group-admin");
        admin.setNamesrvAddr(nameServer);
        admin.start();
        String broker = admin.examineTopicRouteInfo(topic).getBrokerDatas().get(0).selectBrokerAddr();

        // As the proxy asks; mqadmin reads the table of all groups.
        SubscriptionGroupConfig asked = admin.getDefaultMQAdminExtImpl().getMqClientInstance()
            .getMQClientAPIImpl().getSubscriptionGroupConfig(broker, topic + "-asked", 10_000);
        Check.same(topic + "-asked", asked.getGroupName(), "name of a group that was asked for");
        Check.same(16, asked.getRetryMaxTimes(), "its tries");
        Check.same(1, asked.getRetryQueueNums(), "its retry queues");

        String group = topic + "-group";
        admin.setMessageRequestMode(broker, topic, group, MessageRequestMode.POP, 0, 3000);
        Check.same(group, admin.examineSubscriptionGroupConfig(broker, group).getGroupName(), "the group of the mode");
        List<MessageExt> got = Check.list();
        DefaultMQPushConsumer consumer = Check.consumer(nameServer, group, topic, "*");
        consumer.setClientRebalance(false);
        Check.collect(consumer, got);
        Check.until(() -> !got.isEmpty(), 60, () -> "the message, by a pop");
        Check.that(got.get(0).getProperty("POP_CK") != null, "popped, as was set before there was a group");
        consumer.shutdown();
        admin.shutdown();
        producer.shutdown();
    }
}
