import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.concurrent.Callable;
import java.util.function.Predicate;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import java.util.stream.Stream;

import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientConfigurationBuilder;
import org.apache.rocketmq.client.apis.ClientException;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.StaticSessionCredentialsProvider;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.FilterExpressionType;
import org.apache.rocketmq.client.apis.consumer.PushConsumer;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.MessageBuilder;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.client.apis.producer.SendReceipt;
import org.apache.rocketmq.client.apis.producer.Transaction;
import org.apache.rocketmq.client.apis.producer.TransactionResolution;

/**
 * Cases of the official Java client: each prints OK, or what was wrong and ends with 1.
 * `java Cases CASE ENDPOINT TOPIC`; the consumer groups are named after the topic.
 */
public final class Cases {
    private static final ClientServiceProvider PROVIDER = ClientServiceProvider.loadService();
    private static final int PATIENCE_SECONDS = 60;
    private static final Duration POLL = Duration.ofSeconds(5);
    private static final Duration INVISIBLE = Duration.ofSeconds(40);

    private final String endpoint;
    private final String topic;
    private final String group;
    private final String secret;
    private boolean isPlain;

    private Cases(String endpoint, String topic, String secret) {
        this.endpoint = endpoint;
        this.topic = topic;
        this.group = topic + "-group";
        this.secret = secret;
    }

    interface Case {
        void run() throws Exception;
    }

    public static void main(String[] arguments) {
        Cases cases = new Cases(arguments[1], arguments[2], System.getenv("PEER_SECRET_KEY"));
        Map<String, Case> all = Map.ofEntries(
            Map.entry("normal", cases::normal), Map.entry("transport", cases::transport),
            Map.entry("fifo", cases::fifo), Map.entry("fifo_push", cases::fifoPush),
            Map.entry("delay", cases::delay), Map.entry("recall", cases::recall),
            Map.entry("transaction", cases::transaction), Map.entry("check", cases::check),
            Map.entry("priority", cases::priority), Map.entry("invisible", cases::invisible),
            Map.entry("push", cases::push), Map.entry("dead", cases::dead),
            Map.entry("fifo_dead", cases::fifoDead), Map.entry("filters", cases::filters),
            Map.entry("refused", cases::refused), Map.entry("acl", cases::acl));
        try {
            all.get(arguments[0]).run();
        } catch (Throwable failure) {
            failure.printStackTrace(System.out);
            System.out.flush();
            Runtime.getRuntime().halt(1);
        }
        System.out.println("OK");
        System.out.flush();
        Runtime.getRuntime().halt(0);
    }

    // Assertions

    private static void that(boolean isSo, String what) {
        if (!isSo) {
            throw new AssertionError(what);
        }
    }

    private static void same(Object wanted, Object found, String what) {
        that(wanted.equals(found), what + ": expected " + wanted + ", got " + found);
    }

    private static void until(Callable<Boolean> condition, Callable<String> what) throws Exception {
        long end = System.nanoTime() + PATIENCE_SECONDS * 1_000_000_000L;
        while (!condition.call()) {
            that(System.nanoTime() < end, "not within " + PATIENCE_SECONDS + " s: " + what.call());
            Thread.sleep(20);
        }
    }

    private static void refuses(Case body, String... words) {
        try {
            body.run();
        } catch (Exception error) {
            StringBuilder said = new StringBuilder();
            for (Throwable cause = error; cause != null; cause = cause.getCause()) {
                said.append(cause).append(' ');
            }
            that(Stream.of(words).anyMatch(said.toString()::contains), "refused with other words: " + said);
            return;
        }
        throw new AssertionError("was not refused");
    }

    // Clients

    private ClientConfiguration configuration() {
        ClientConfigurationBuilder builder = ClientConfiguration.newBuilder().setEndpoints(endpoint)
            .setRequestTimeout(Duration.ofSeconds(10));
        if (isPlain) {
            builder.enableSsl(false);
        }
        String key = System.getenv("PEER_ACCESS_KEY");
        if (key != null) {
            builder.setCredentialProvider(new StaticSessionCredentialsProvider(key, secret));
        }
        return builder.build();
    }

    private Producer producer() throws ClientException {
        return producerOf(topic);
    }

    private Producer producerOf(String name) throws ClientException {
        return PROVIDER.newProducerBuilder().setClientConfiguration(configuration()).setTopics(name).build();
    }

    /** Commits what begins with "commit", and rolls back the rest. */
    private Producer producer(Set<String> checked) throws ClientException {
        return PROVIDER.newProducerBuilder().setClientConfiguration(configuration()).setTopics(topic)
            .setTransactionChecker(message -> {
                checked.add(text(message));
                return text(message).startsWith("commit")
                    ? TransactionResolution.COMMIT : TransactionResolution.ROLLBACK;
            }).build();
    }

    private SimpleConsumer simple() throws ClientException {
        return simple(group, topic, FilterExpression.SUB_ALL);
    }

    private SimpleConsumer simple(String name, String from, FilterExpression filter) throws ClientException {
        return PROVIDER.newSimpleConsumerBuilder().setClientConfiguration(configuration())
            .setConsumerGroup(name).setAwaitDuration(POLL)
            .setSubscriptionExpressions(Collections.singletonMap(from, filter)).build();
    }

    private PushConsumer push(Predicate<MessageView> consume) throws ClientException {
        return PROVIDER.newPushConsumerBuilder().setClientConfiguration(configuration()).setConsumerGroup(group)
            .setSubscriptionExpressions(Collections.singletonMap(topic, FilterExpression.SUB_ALL))
            .setMessageListener(one -> consume.test(one) ? ConsumeResult.SUCCESS : ConsumeResult.FAILURE)
            .build();
    }

    // Messages

    private MessageBuilder message(String text) {
        return PROVIDER.newMessageBuilder().setTopic(topic).setBody(text.getBytes(StandardCharsets.UTF_8));
    }

    private static String text(MessageView message) {
        return StandardCharsets.UTF_8.decode(message.getBody().duplicate()).toString();
    }

    private static List<String> texts(Collection<MessageView> messages) {
        return messages.stream().map(Cases::text).collect(Collectors.toList());
    }

    private static List<String> sorted(Collection<String> texts) {
        return texts.stream().sorted().collect(Collectors.toList());
    }

    private static List<String> numbered(String prefix, int count) {
        return IntStream.range(0, count).mapToObj(number -> prefix + number).collect(Collectors.toList());
    }

    private static List<String> startingWith(String prefix, List<String> texts) {
        synchronized (texts) {
            return texts.stream().filter(text -> text.startsWith(prefix)).collect(Collectors.toList());
        }
    }

    /** Receives and acknowledges until so many messages have arrived. */
    private static List<MessageView> receive(SimpleConsumer consumer, int count, int batch) throws Exception {
        List<MessageView> got = new ArrayList<>();
        until(() -> {
            for (MessageView message : consumer.receive(batch, INVISIBLE)) {
                consumer.ack(message);
                got.add(message);
            }
            return got.size() >= count;
        }, () -> count + " messages, got " + texts(got));
        return got;
    }

    /** One whole poll without a message. */
    private static void drained(SimpleConsumer consumer) throws ClientException {
        same(List.of(), texts(consumer.receive(16, INVISIBLE)), "messages left");
    }

    /** Fails for a text until its delivery number `good`; records all deliveries. */
    private static Predicate<MessageView> failing(List<String> tries, String text, int good) {
        return message -> {
            synchronized (tries) {
                tries.add(text(message));
                return !text(message).equals(text) || Collections.frequency(tries, text) >= good;
            }
        };
    }

    private static List<String> list() {
        return Collections.synchronizedList(new ArrayList<>());
    }

    // Cases

    private void normal() throws Exception {
        Producer producer = producer();
        SimpleConsumer consumer = simple();
        for (int number = 0; number < 12; number++) {
            SendReceipt receipt = producer.send(message("m-" + number).setTag("tag").setKeys("key-" + number)
                .addProperty("number", "" + number).build());
            same(34, receipt.getMessageId().toString().length(), "length of a message id");
        }
        List<MessageView> got = receive(consumer, 12, 16);
        same(sorted(numbered("m-", 12)), sorted(texts(got)), "bodies");
        for (MessageView message : got) {
            String number = text(message).substring(2);
            same("tag", message.getTag().get(), "tag");
            same(List.of("key-" + number), List.copyOf(message.getKeys()), "keys");
            same(Map.of("number", number), message.getProperties(), "properties");
            same(1, message.getDeliveryAttempt(), "delivery attempt");
            that(Math.abs(message.getBornTimestamp() - System.currentTimeMillis()) < 300_000, "born time");
        }
        drained(consumer);
        producer.close();
        consumer.close();
    }

    /** The client uses TLS by default, without a look at the certificate; here it uses plaintext. */
    private void transport() throws Exception {
        isPlain = true;
        normal();
    }

    private void sendFifo() throws Exception {
        Producer producer = producer();
        for (int number = 0; number < 6; number++) {
            for (String name : List.of("a", "b")) {
                producer.send(message(name + "-" + number).setMessageGroup(name).build());
            }
        }
    }

    private void fifo() throws Exception {
        SimpleConsumer consumer = simple();
        sendFifo();
        List<MessageView> got = receive(consumer, 12, 16);
        for (String name : List.of("a", "b")) {
            List<String> found = got.stream().filter(one -> one.getMessageGroup().get().equals(name))
                .map(Cases::text).collect(Collectors.toList());
            same(numbered(name + "-", 6), found, "order");
        }
    }

    /** A message that fails once is tried again before the next of its group. */
    private void fifoPush() throws Exception {
        List<String> tries = list();
        push(failing(tries, "a-2", 2));
        sendFifo();
        until(() -> tries.size() >= 13, () -> "13 deliveries, got " + tries);
        same(List.of("a-0", "a-1", "a-2", "a-2", "a-3", "a-4", "a-5"), startingWith("a", tries), "order of a");
        same(numbered("b-", 6), startingWith("b", tries), "order of b");
    }

    private void delay() throws Exception {
        Producer producer = producer();
        SimpleConsumer consumer = simple();
        long start = System.currentTimeMillis();
        for (int wait : new int[] {6000, 3000}) {
            producer.send(message("" + wait).setDeliveryTimestamp(start + wait).build());
        }
        for (int wait : new int[] {3000, 6000}) {
            same(List.of("" + wait), texts(receive(consumer, 1, 16)), "message");
            long passed = System.currentTimeMillis() - start;
            that(passed >= wait - 1000, "after " + passed + " ms already");
        }
    }

    private void recall() throws Exception {
        Producer producer = producer();
        SimpleConsumer consumer = simple();
        long at = System.currentTimeMillis() + 6000;
        SendReceipt receipt = producer.send(message("recalled").setDeliveryTimestamp(at).build());
        producer.send(message("kept").setDeliveryTimestamp(at + 1000).build());
        String recalled = producer.recallMessage(topic, receipt.getRecallHandle()).getMessageId().toString();
        same(receipt.getMessageId().toString(), recalled, "recalled message");
        same(List.of("kept"), texts(receive(consumer, 1, 16)), "messages");
        drained(consumer);
    }

    private void transaction() throws Exception {
        Set<String> checked = Collections.synchronizedSet(new TreeSet<>());
        Producer producer = producer(checked);
        SimpleConsumer consumer = simple();
        for (String decision : List.of("rolled back", "committed")) {
            Transaction open = producer.beginTransaction();
            producer.send(message(decision).build(), open);
            if (decision.equals("committed")) {
                open.commit();
            } else {
                open.rollback();
            }
        }
        same(List.of("committed"), texts(receive(consumer, 1, 16)), "messages");
        drained(consumer);
        same(Set.of(), checked, "checks of ended transactions");
    }

    /** The broker asks for the outcome of transactions that were never ended. */
    private void check() throws Exception {
        Set<String> checked = Collections.synchronizedSet(new TreeSet<>());
        Producer producer = producer(checked);
        SimpleConsumer consumer = simple();
        for (String decision : List.of("rollback later", "commit later")) {
            producer.send(message(decision).build(), producer.beginTransaction());
        }
        same(List.of("commit later"), texts(receive(consumer, 1, 16)), "messages");
        until(() -> checked.size() == 2, () -> "two checks, got " + checked);
        // A broker may ask twice, and then delivers what was committed twice.
        that(texts(consumer.receive(16, INVISIBLE)).stream().allMatch("commit later"::equals), "messages");
    }

    private void priority() throws Exception {
        Producer producer = producer();
        SimpleConsumer consumer = simple();
        for (int level : new int[] {1, 3, 2}) {
            producer.send(message("" + level).setPriority(level).build());
        }
        List<MessageView> got = receive(consumer, 3, 1);
        same(List.of("3", "2", "1"), texts(got), "order");
        same(3, got.get(0).getPriority().get(), "priority");
    }

    private void invisible() throws Exception {
        Producer producer = producer();
        SimpleConsumer consumer = simple();
        producer.send(message("again").build());
        List<MessageView> got = new ArrayList<>();
        until(() -> got.addAll(consumer.receive(1, INVISIBLE)), () -> "a message");
        long start = System.nanoTime();
        consumer.changeInvisibleDuration(got.get(0), Duration.ofSeconds(2));
        MessageView second = receive(consumer, 1, 16).get(0);
        long passed = (System.nanoTime() - start) / 1_000_000;
        that(passed >= 1000 && passed < 30_000, "came again after " + passed + " ms");
        same("again", text(second), "second delivery");
        same(2, second.getDeliveryAttempt(), "delivery attempt");
        drained(consumer);
    }

    /** A listener's failure brings the message again, with a higher count. */
    private void push() throws Exception {
        Map<String, List<Integer>> seen = Collections.synchronizedMap(new TreeMap<>());
        PushConsumer consumer = push(message -> {
            seen.computeIfAbsent(text(message), name -> new ArrayList<>()).add(message.getDeliveryAttempt());
            return !text(message).equals("m-3") || message.getDeliveryAttempt() > 1;
        });
        Producer producer = producer();
        Map<String, List<Integer>> wanted = new TreeMap<>();
        for (String text : numbered("m-", 20)) {
            producer.send(message(text).build());
            wanted.put(text, text.equals("m-3") ? List.of(1, 2) : List.of(1));
        }
        until(() -> seen.size() == 20 && seen.get("m-3").size() == 2, () -> "got " + seen);
        same(wanted, new TreeMap<>(seen), "deliveries");
        producer.close();
        consumer.close();
    }

    private void assertLetters(String wanted) throws Exception {
        SimpleConsumer letters = simple(topic + "-letters", "%DLQ%" + group, FilterExpression.SUB_ALL);
        same(List.of(wanted), texts(receive(letters, 1, 16)), "dead letters");
    }

    /** A group with one retry: a message that fails twice is in the dead letter queue. */
    private void dead() throws Exception {
        List<String> tries = list();
        push(failing(tries, "bad", Integer.MAX_VALUE));
        Producer producer = producer();
        for (String text : List.of("good", "bad", "fine")) {
            producer.send(message(text).build());
        }
        assertLetters("bad");
        same(List.of("bad", "bad", "fine", "good"), sorted(tries), "deliveries");
    }

    /** The client itself sends an ordered message to the dead letter queue, and consumes the next. */
    private void fifoDead() throws Exception {
        List<String> tries = list();
        push(failing(tries, "a-1", Integer.MAX_VALUE));
        Producer producer = producer();
        for (String text : numbered("a-", 4)) {
            producer.send(message(text).setMessageGroup("a").build());
        }
        until(() -> tries.size() >= 5, () -> "5 deliveries, got " + tries);
        same(List.of("a-0", "a-1", "a-1", "a-2", "a-3"), List.copyOf(tries), "deliveries");
        assertLetters("a-1");
    }

    private void filters() throws Exception {
        FilterExpression sql = new FilterExpression("n >= 4 AND TAGS <> 'c'", FilterExpressionType.SQL92);
        SimpleConsumer byTag = simple(topic + "-tag", topic, new FilterExpression("a||b"));
        SimpleConsumer bySql = simple(topic + "-sql", topic, sql);
        Producer producer = producer();
        for (int number = 0; number < 9; number++) {
            String tag = "abc".substring(number % 3, number % 3 + 1);
            producer.send(message("" + number).setTag(tag).addProperty("n", "" + number).build());
        }
        for (Map.Entry<String, SimpleConsumer> one : Map.of("013467", byTag, "467", bySql).entrySet()) {
            List<MessageView> got = receive(one.getValue(), one.getKey().length(), 16);
            same(one.getKey(), String.join("", sorted(texts(got))), "messages");
            drained(one.getValue());
        }
    }

    /** What no server can do is refused with the code that says why. */
    private void refused() throws Exception {
        refuses(() -> producerOf(topic + "-missing"), "response-code=40402");
        Producer producer = producer();
        refuses(() -> producer.send(message("x").setMessageGroup("group").build()), "type");
        refuses(() -> simple(group, topic + "-missing", FilterExpression.SUB_ALL), "response-code=40402");
        producer.send(message("the client still works").build());
    }

    private void acl() throws Exception {
        normal();
        Cases stranger = new Cases(endpoint, topic, "another secret");
        refuses(stranger::producer, "response-code=40100");
        refuses(() -> producerOf("forbidden"), "response-code=40100");
    }
}
