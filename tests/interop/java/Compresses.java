import java.util.ArrayList;
import java.util.Collections;
import java.util.List;

import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.Message;

/**
 * Bodies of 4 KiB and more, which the client compresses: zlib, or as -Drocketmq.message.compressType says.
 * Between them small ones, and a batch of large ones, which no client of Java's compresses.
 */
public final class Compresses {
    public static void main(String[] arguments) {
        Check.main(() -> run(arguments[0], arguments[1], arguments[2]));
    }

    private static void run(String nameServer, String topic, String prefix) throws Exception {
        DefaultMQProducer producer = Check.producer(nameServer, "compresses");
        for (int number = 0; number < 20; number++) {
            int copies = number % 2 == 0 ? 500 * (1 + number) : 1;
            Check.isOk(producer.send(Check.message(topic, "single", "", body(prefix, number, copies))));
        }
        List<Message> batch = new ArrayList<>();
        for (int number = 20; number < 25; number++) {
            batch.add(Check.message(topic, "batch", "", body(prefix, number, 500)));
        }
        Check.isOk(producer.send(batch));
        producer.shutdown();
    }

    private static String body(String prefix, int number, int copies) {
        String one = prefix + "-" + number + " é漢;";
        return String.join("", Collections.nCopies(copies, one));
    }
}
