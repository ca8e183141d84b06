import java.util.ArrayList;
import java.util.Collections;
import java.util.List;

import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.MessageExt;

/** A push consumer gets the tags it asked for and nothing else; "Aa" and "BB" have one hash code. */
public final class Tags {
    public static void main(String[] arguments) {
        Check.main(() -> run(arguments[0], arguments[1]));
    }

    private static void run(String nameServer, String topic) throws Exception {
        DefaultMQProducer producer = Check.producer(nameServer, "tags");
        String[] tags = {"Aa", "BB", "C", "D", null};
        List<String> wanted = new ArrayList<>();
        for (int number = 0; number < 100; number++) {
            String tag = tags[number % tags.length];
            Check.isOk(producer.send(Check.message(topic, tag, "", number + " " + tag)));
            if ("Aa".equals(tag) || "C".equals(tag)) {
                wanted.add(number + " " + tag);
            }
        }
        Collections.sort(wanted);
        List<MessageExt> got = Check.list();
        List<MessageExt> all = Check.list();
        DefaultMQPushConsumer some =
            Check.collect(Check.consumer(nameServer, topic + "-some", topic, "Aa || C"), got);
        DefaultMQPushConsumer every = Check.collect(Check.consumer(nameServer, topic + "-all", topic, "*"), all);
        Check.until(() -> got.size() >= wanted.size() && all.size() >= 100, 90,
            () -> got.size() + " and " + all.size());
        // What comes last in every queue is wanted by both: what was filtered before it is known by then.
        int before = got.size();
        for (int number = 0; number < 16; number++) {
            Check.isOk(producer.send(Check.message(topic, "C", "", "last " + number)));
            wanted.add("last " + number);
        }
        Check.until(() -> got.size() >= wanted.size(), 90, () -> got.size() + " of " + wanted.size());
        Collections.sort(wanted);
        Check.same(wanted, Check.sortedTexts(got), "bodies, " + before + " of them early");
        some.shutdown();
        every.shutdown();
        producer.shutdown();
    }
}
