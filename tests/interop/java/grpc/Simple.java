import java.time.Duration;
import java.util.ArrayList;
import java.util.List;

import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.FilterExpressionType;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.client.apis.producer.SendReceipt;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/**
 * A simple consumer of a group that nobody used before: every message once with all its parts; what it lets go
 * comes again, what it acknowledged does not.
 */
public final class Simple {
    public static void main(String[] arguments) {
        Grpc.main(() -> run(arguments[0], arguments[1], arguments[2]));
    }

    private static void run(String nameServer, String proxy, String topic) throws Exception {
        DefaultMQAdminExt admin = Grpc.admin(nameServer);
        Grpc.makeTopic(admin, topic, "NORMAL", 4);
        String group = topic + "-group";
        SimpleConsumer consumer = Grpc.simple(proxy, group, topic,
            new FilterExpression("red || blue", FilterExpressionType.TAG));
        Producer producer = Grpc.producer(proxy, topic);
        List<String> wanted = new ArrayList<>();
        for (int number = 0; number < 20; number++) {
            String tag = number % 2 == 0 ? "red" : number % 4 == 1 ? "blue" : "green";
            SendReceipt receipt = producer.send(Grpc.builder(topic, "m-" + number).setTag(tag)
                .setKeys("key-" + number).addProperty("number", "" + number).build());
            Grpc.that(receipt.getMessageId() != null, "a receipt has an id");
            if (!tag.equals("green")) {
                wanted.add("m-" + number);
            }
        }
        wanted.sort(null);
        List<MessageView> got = Grpc.receive(consumer, wanted.size(), 60, Duration.ofSeconds(30));
        Grpc.same(wanted, Grpc.sortedTexts(got), "what came");
        for (MessageView message : got) {
            String number = Grpc.text(message).substring(2);
            Grpc.same(1, message.getDeliveryAttempt(), "tries of " + number);
            Grpc.same(number, message.getProperties().get("number"), "property of " + number);
            Grpc.same(List.of("key-" + number), List.copyOf(message.getKeys()), "keys of " + number);
        }
        MessageView letGo = got.remove(0);
        for (MessageView message : got) {
            consumer.ack(message);
        }
        consumer.changeInvisibleDuration(letGo, Duration.ofSeconds(1));
        List<MessageView> again = Grpc.receive(consumer, 1, 40, Duration.ofSeconds(30));
        Grpc.same(List.of(Grpc.text(letGo)), Grpc.sortedTexts(again), "what came again");
        Grpc.same(2, again.get(0).getDeliveryAttempt(), "its tries");
        consumer.ack(again.get(0));
        Grpc.same(List.of(), Grpc.sortedTexts(consumer.receive(16, Duration.ofSeconds(30))), "what is left");
        producer.close();
        consumer.close();
        admin.shutdown();
    }
}
