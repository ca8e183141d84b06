import java.util.ArrayList;
import java.util.Collections;
import java.util.List;

import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/** Push consumers with SQL92 subscriptions; each message says by name which expressions should take it. */
public final class SqlFilter {
    private static final String[] EXPRESSIONS = {
        "a > 5 AND a < 60",
        "a BETWEEN 3 AND 30 AND b IS NOT NULL",
        "b IN ('x', 'y') OR NOT (a > 10)",
        "TAGS = 'even' AND b = 'x'",
        "b IS NULL OR a >= 9.5e1",
    };

    public static void main(String[] arguments) {
        Check.main(() -> run(arguments[0], arguments[1]));
    }

    private static boolean[] taken(int a, String b) {
        return new boolean[] {
            a > 5 && a < 60,
            a >= 3 && a <= 30 && b != null,
            b != null && (b.equals("x") || b.equals("y")) || a <= 10,
            a % 2 == 0 && "x".equals(b),
            b == null || a >= 95,
        };
    }

    private static void run(String nameServer, String topic) throws Exception {
        DefaultMQProducer producer = Check.producer(nameServer, "sql");
        List<List<String>> wanted = new ArrayList<>();
        for (int number = 0; number < EXPRESSIONS.length; number++) {
            wanted.add(new ArrayList<>());
        }
        String[] texts = {"x", "y", "z", null};
        for (int a = 0; a < 100; a++) {
            String b = texts[a / 2 % texts.length];
            Message message = Check.message(topic, a % 2 == 0 ? "even" : "odd", "", a + " " + b);
            message.putUserProperty("a", String.valueOf(a));
            if (b != null) {
                message.putUserProperty("b", b);
            }
            Check.isOk(producer.send(message));
            boolean[] taken = taken(a, b);
            for (int number = 0; number < EXPRESSIONS.length; number++) {
                if (taken[number]) {
                    wanted.get(number).add(a + " " + b);
                }
            }
        }
        List<DefaultMQPushConsumer> consumers = new ArrayList<>();
        List<List<MessageExt>> got = new ArrayList<>();
        for (int number = 0; number < EXPRESSIONS.length; number++) {
            DefaultMQPushConsumer consumer = Check.consumer(nameServer, topic + "-" + number, topic, "*");
            consumer.setInstanceName("sql" + number);
            consumer.subscribe(topic, MessageSelector.bySql(EXPRESSIONS[number]));
            List<MessageExt> into = Check.list();
            got.add(into);
            consumers.add(Check.collect(consumer, into));
        }
        for (int number = 0; number < EXPRESSIONS.length; number++) {
            List<String> these = wanted.get(number);
            List<MessageExt> found = got.get(number);
            String expression = EXPRESSIONS[number];
            Check.until(() -> found.size() >= these.size(), 40,
                () -> expression + ": " + found.size() + " of " + these.size());
        }
        Thread.sleep(500);
        for (int number = 0; number < EXPRESSIONS.length; number++) {
            Collections.sort(wanted.get(number));
            Check.same(wanted.get(number), Check.sortedTexts(got.get(number)), EXPRESSIONS[number]);
        }
        DefaultMQPushConsumer broken = Check.consumer(nameServer, topic + "-broken", topic, "*");
        broken.setInstanceName("broken");
        broken.subscribe(topic, MessageSelector.bySql("a > > 5"));
        try {
            Check.collect(broken, Check.list());
            Check.that(false, "a consumer with a broken expression has started");
        } catch (MQClientException expected) {
            System.out.println("refused: " + expected.getMessage());
        }
        for (DefaultMQPushConsumer consumer : consumers) {
            consumer.shutdown();
        }
        producer.shutdown();
    }
}
