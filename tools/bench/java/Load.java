import java.lang.management.ManagementFactory;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.List;
import java.util.Locale;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.locks.LockSupport;

import org.apache.rocketmq.client.consumer.AckCallback;
import org.apache.rocketmq.client.consumer.AckResult;
import org.apache.rocketmq.client.consumer.AckStatus;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.PopCallback;
import org.apache.rocketmq.client.consumer.PopResult;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.impl.factory.MQClientInstance;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageConst;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.protocol.header.AckMessageRequestHeader;
import org.apache.rocketmq.remoting.protocol.header.PopMessageRequestHeader;

/**
 * One load on one broker group, by RocketMQ's own client: nameServer topic kind bodyBytes inFlight batch rate
 * warmUpSeconds seconds.
 *
 * Prints BEGIN when the measured time begins, and END with the figures as JSON when it ends. Latencies of a fixed
 * rate count from the moment at which a send was due, so that a stall is not left out.
 */
public final class Load {
    private static final int SAMPLES_MAX = 1 << 22;
    private static final long TIMEOUT_MS = 10_000;
    private static final int ATTEMPTS_MAX = 120;
    private static final int READ_AT_ONCE = 32;
    private static final int SEEKS_MAX = 20;
    private static final long INVISIBLE_MS = 60_000;
    private static final String DUE = "due";

    private final String nameServer;
    private final String topic;
    private final byte[] body;
    private final int inFlight;
    private final int batch;
    private final int rate;
    private final int delayLevel;
    private final long warmUpNs;
    private final long measuredNs;

    private final long[] latenciesNs = new long[SAMPLES_MAX];
    private final AtomicInteger samples = new AtomicInteger();
    private final AtomicInteger failures = new AtomicInteger();
    private final AtomicInteger answers = new AtomicInteger();
    private volatile boolean isMeasuring;
    private volatile Throwable failure;

    private Load(String[] arguments) {
        nameServer = arguments[0];
        topic = arguments[1];
        body = new byte[Integer.parseInt(arguments[3])];
        Arrays.fill(body, (byte) 'x');
        inFlight = Integer.parseInt(arguments[4]);
        batch = Integer.parseInt(arguments[5]);
        rate = Integer.parseInt(arguments[6]);
        delayLevel = arguments[2].equals("delay") ? 1 : 0;
        warmUpNs = (long) (Double.parseDouble(arguments[7]) * 1e9);
        measuredNs = (long) (Double.parseDouble(arguments[8]) * 1e9);
    }

    public static void main(String[] arguments) {
        try {
            run(arguments);
        } catch (Throwable error) {
            error.printStackTrace();
            System.exit(1);
        }
        // The client's threads are not worth waiting for.
        System.exit(0);
    }

    private static void run(String[] arguments) throws Exception {
        Load load = new Load(arguments);
        switch (arguments[2]) {
            case "send":
            case "delay": load.send(); break;
            case "rate": load.sendAtRate(); break;
            case "rate-read": load.readMeanwhile(); break;
            case "deliver": load.deliver(); break;
            case "transaction": load.sendTransactions(); break;
            case "read": load.read("*"); break;
            case "filter": load.read("T1"); break;
            case "sql": load.readBySql("TAGS = 'T1'"); break;
            case "pop": load.popAndAck(); break;
            case "push": load.push(); break;
            default: throw new IllegalArgumentException("no load is called " + arguments[2]);
        }
    }

    /** As many at a time as asked for, each followed by the next. */
    private void send() throws Exception {
        DefaultMQProducer producer = start(new DefaultMQProducer("bench"));
        Semaphore room = new Semaphore(inFlight);
        Clock clock = new Clock();
        for (int number = 0; clock.goesOn(); number++) {
            room.acquire();
            long begun = System.nanoTime();
            SendCallback done = note(begun, batch, room);
            if (batch > 1) {
                producer.send(messages(number), done, TIMEOUT_MS);
            } else {
                producer.send(message(number), done, TIMEOUT_MS);
            }
        }
        room.acquire(inFlight);
        clock.tell();
    }

    /** A fixed number each second, however long the answers take. */
    private void sendAtRate() throws Exception {
        sendAtRate(start(new DefaultMQProducer("bench")), true);
    }

    /** The same, while one thread reads what the topic holds, as fast as it can, again and again. */
    private void readMeanwhile() throws Exception {
        DefaultMQPullConsumer consumer = start(new DefaultMQPullConsumer("bench_meanwhile"));
        DefaultMQProducer producer = start(new DefaultMQProducer("bench"));
        List<MessageQueue> queues = new ArrayList<>(consumer.fetchSubscribeMessageQueues(topic));
        Thread reader = new Thread(() -> {
            long[] offsets = new long[queues.size()];
            for (int number = 0; ; number = (number + 1) % offsets.length) {
                try {
                    PullResult result = consumer.pull(queues.get(number), "*", offsets[number], READ_AT_ONCE);
                    boolean isOver = result.getPullStatus() == PullStatus.NO_NEW_MSG;
                    offsets[number] = isOver ? 0 : result.getNextBeginOffset();
                } catch (Exception error) {
                    noteFailure(error, 1);
                }
            }
        });
        reader.setDaemon(true);
        reader.start();
        sendAtRate(producer, true);
    }

    /** A fixed number each second to one consumer, from the moment at which a send was due to its delivery. */
    private void deliver() throws Exception {
        DefaultMQProducer producer = start(new DefaultMQProducer("bench"));
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer("bench_deliver");
        consumer.setNamesrvAddr(nameServer);
        consumer.setAutoCommit(false);
        consumer.setPullBatchSize(READ_AT_ONCE);
        consumer.start();
        Collection<MessageQueue> queues = consumer.fetchMessageQueues(topic);
        consumer.assign(queues);
        for (MessageQueue queue : queues) {
            seek(queue, consumer::seekToEnd);
        }
        Thread reader = new Thread(() -> {
            while (true) {
                for (MessageExt message : consumer.poll(200)) {
                    String due = message.getProperty(DUE);
                    if (isMeasuring && due != null) {
                        answers.incrementAndGet();
                        sample(System.nanoTime() - Long.parseLong(due));
                    }
                }
            }
        });
        reader.setDaemon(true);
        reader.start();
        sendAtRate(producer, false);
    }

    private void sendAtRate(DefaultMQProducer producer, boolean countsAnswers) throws Exception {
        Semaphore room = new Semaphore(100_000);
        Clock clock = new Clock();
        long first = System.nanoTime();
        for (int number = 0; clock.goesOn(); number++) {
            long due = first + (long) (number * 1e9 / rate);
            while (System.nanoTime() < due) {
                LockSupport.parkNanos(Math.min(50_000, due - System.nanoTime()));
            }
            room.acquire();
            Message message = message(number);
            if (!countsAnswers) {
                message.putUserProperty(DUE, Long.toString(due));
            }
            producer.send(message, note(due, countsAnswers ? 1 : 0, room), TIMEOUT_MS);
        }
        room.acquire(100_000);
        clock.tell();
    }

    /** Each thread sends a half message, runs nothing and commits. */
    private void sendTransactions() throws Exception {
        TransactionMQProducer producer = new TransactionMQProducer("bench");
        producer.setTransactionListener(new TransactionListener() {
            @Override
            public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
                return LocalTransactionState.COMMIT_MESSAGE;
            }

            @Override
            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                return LocalTransactionState.COMMIT_MESSAGE;
            }
        });
        start(producer);
        Clock clock = new Clock();
        runInThreads(clock, inFlight, worker -> {
            long begun = System.nanoTime();
            noteResult(producer.sendMessageInTransaction(message(0), null), begun, 1);
        });
        clock.tell();
    }

    /** What the topic holds, from the beginning again when its end is reached. */
    private void read(String tags) throws Exception {
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer("bench_read");
        consumer.setNamesrvAddr(nameServer);
        consumer.setAutoCommit(false);
        consumer.setPullBatchSize(READ_AT_ONCE);
        consumer.setPullThreadNums(4);
        consumer.setSubExpressionForAssign(topic, tags);
        consumer.start();
        Collection<MessageQueue> queues = consumer.fetchMessageQueues(topic);
        consumer.assign(queues);
        seekToBegin(consumer, queues);
        Clock clock = new Clock();
        int silent = 0;
        while (clock.goesOn()) {
            long begun = System.nanoTime();
            int count = consumer.poll(200).size();
            if (isMeasuring) {
                answers.addAndGet(count);
                sample(System.nanoTime() - begun);
            }
            silent = count == 0 ? silent + 1 : 0;
            if (silent >= 1) {
                seekToBegin(consumer, queues);
                silent = 0;
            }
        }
        clock.tell();
    }

    /** What the topic holds, by a listener; by one of another group when its end is reached. */
    private void push() throws Exception {
        Clock clock = new Clock();
        while (clock.goesOn()) {
            AtomicInteger handled = new AtomicInteger();
            DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("bench_push_" + System.nanoTime());
            consumer.setNamesrvAddr(nameServer);
            consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
            consumer.subscribe(topic, "*");
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                handled.addAndGet(messages.size());
                if (isMeasuring) {
                    answers.addAndGet(messages.size());
                }
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
            consumer.start();
            int before = -1;
            while (clock.goesOn() && (handled.get() == 0 || handled.get() > before)) {
                before = handled.get();
                Thread.sleep(200);
            }
            consumer.shutdown();
        }
        clock.tell();
    }

    /** A seek interrupts the queue's pull, and an interrupted pull closes the connection that the next seek uses. */
    private static void seekToBegin(DefaultLitePullConsumer consumer, Collection<MessageQueue> queues)
        throws Exception {
        for (MessageQueue queue : queues) {
            seek(queue, consumer::seekToBegin);
        }
    }

    private static void seek(MessageQueue queue, Seek seek) throws Exception {
        for (int attempt = 0; ; attempt++) {
            try {
                seek.run(queue);
                return;
            } catch (MQClientException error) {
                if (attempt == SEEKS_MAX) {
                    throw error;
                }
                Thread.sleep(1);
            }
        }
    }

    private interface Seek {
        void run(MessageQueue queue) throws MQClientException;
    }

    /** The same, a thread for each queue, of the messages that an expression selects. */
    private void readBySql(String expression) throws Exception {
        DefaultMQPullConsumer consumer = start(new DefaultMQPullConsumer("bench_sql"));
        // The answer to a heartbeat has the broker's version, without which no client asks for SQL92.
        clientOf(consumer).sendHeartbeatToAllBrokerWithLock();
        List<MessageQueue> queues = new ArrayList<>(consumer.fetchSubscribeMessageQueues(topic));
        MessageSelector selector = MessageSelector.bySql(expression);
        long[] offsets = new long[queues.size()];
        Clock clock = new Clock();
        runInThreads(clock, queues.size(), worker -> {
            long begun = System.nanoTime();
            PullResult result = consumer.pull(queues.get(worker), selector, offsets[worker], READ_AT_ONCE);
            boolean isOver = result.getPullStatus() == PullStatus.NO_NEW_MSG;
            offsets[worker] = isOver ? 0 : result.getNextBeginOffset();
            if (isMeasuring && result.getPullStatus() == PullStatus.FOUND) {
                answers.addAndGet(result.getMsgFoundList().size());
                sample(System.nanoTime() - begun);
            }
        });
        clock.tell();
    }

    /** As many pops at a time as asked for, by a group of this run; each is over when all of it is acknowledged. */
    private void popAndAck() throws Exception {
        DefaultMQPullConsumer consumer = start(new DefaultMQPullConsumer("bench_pop_" + System.nanoTime()));
        MQClientInstance client = clientOf(consumer);
        List<MessageQueue> queues = new ArrayList<>(consumer.fetchSubscribeMessageQueues(topic));
        Semaphore room = new Semaphore(inFlight);
        Clock clock = new Clock();
        for (int number = 0; clock.goesOn(); number++) {
            room.acquire();
            MessageQueue queue = queues.get(number % queues.size());
            String address = client.findBrokerAddressInPublish(queue.getBrokerName());
            PopMessageRequestHeader header = new PopMessageRequestHeader();
            header.setConsumerGroup(consumer.getConsumerGroup());
            header.setTopic(topic);
            header.setQueueId(queue.getQueueId());
            header.setMaxMsgNums(READ_AT_ONCE);
            header.setInvisibleTime(INVISIBLE_MS);
            header.setBornTime(System.currentTimeMillis());
            header.setInitMode(0);
            header.setOrder(false);
            long begun = System.nanoTime();
            PopCallback done = new PopCallback() {
                @Override
                public void onSuccess(PopResult result) {
                    acknowledge(client, address, header.getConsumerGroup(), result.getMsgFoundList(), begun, room);
                }

                @Override
                public void onException(Throwable error) {
                    noteFailure(error, 1);
                    room.release();
                }
            };
            client.getMQClientAPIImpl().popMessageAsync(queue.getBrokerName(), address, header, TIMEOUT_MS, done);
        }
        room.acquire(inFlight);
        clock.tell();
    }

    private void acknowledge(
        MQClientInstance client, String address, String group, List<MessageExt> found, long begun, Semaphore room) {
        if (found == null || found.isEmpty()) {
            room.release();
            return;
        }
        AtomicInteger open = new AtomicInteger(found.size());
        for (MessageExt message : found) {
            AckMessageRequestHeader header = new AckMessageRequestHeader();
            header.setConsumerGroup(group);
            header.setTopic(message.getTopic());
            header.setQueueId(message.getQueueId());
            header.setOffset(message.getQueueOffset());
            header.setExtraInfo(message.getProperty(MessageConst.PROPERTY_POP_CK));
            AckCallback done = new AckCallback() {
                @Override
                public void onSuccess(AckResult result) {
                    if (result.getStatus() != AckStatus.OK) {
                        noteFailure(new IllegalStateException("an acknowledgement was refused"), 1);
                    } else if (isMeasuring) {
                        answers.incrementAndGet();
                    }
                    finish();
                }

                @Override
                public void onException(Throwable error) {
                    noteFailure(error, 1);
                    finish();
                }

                private void finish() {
                    if (open.decrementAndGet() == 0) {
                        if (isMeasuring) {
                            sample(System.nanoTime() - begun);
                        }
                        room.release();
                    }
                }
            };
            try {
                client.getMQClientAPIImpl().ackMessageAsync(address, TIMEOUT_MS, done, header);
            } catch (Exception error) {
                done.onException(error);
            }
        }
    }

    /** What one thread does again and again. */
    private interface Step {
        void run(int worker) throws Exception;
    }

    private void runInThreads(Clock clock, int count, Step step) throws Exception {
        List<Thread> threads = new ArrayList<>();
        for (int number = 0; number < count; number++) {
            int worker = number;
            Thread thread = new Thread(() -> {
                while (clock.isOpen()) {
                    try {
                        step.run(worker);
                    } catch (Exception error) {
                        noteFailure(error, 1);
                    }
                }
            });
            thread.start();
            threads.add(thread);
        }
        while (clock.goesOn()) {
            Thread.sleep(5);
        }
        for (Thread thread : threads) {
            thread.join();
        }
    }

    private DefaultMQPullConsumer start(DefaultMQPullConsumer consumer) throws Exception {
        consumer.setNamesrvAddr(nameServer);
        consumer.start();
        return consumer;
    }

    private MQClientInstance clientOf(DefaultMQPullConsumer consumer) {
        MQClientInstance client = consumer.getDefaultMQPullConsumerImpl().getRebalanceImpl().getmQClientFactory();
        client.updateTopicRouteInfoFromNameServer(topic);
        return client;
    }

    private <T extends DefaultMQProducer> T start(T producer) throws Exception {
        producer.setNamesrvAddr(nameServer);
        producer.setSendMsgTimeout((int) TIMEOUT_MS);
        producer.setRetryTimesWhenSendFailed(0);
        producer.setRetryTimesWhenSendAsyncFailed(0);
        producer.setCompressMsgBodyOverHowmuch(Integer.MAX_VALUE);
        producer.start();
        for (int attempt = 0; ; attempt++) {
            try {
                producer.send(message(0));
                return producer;
            } catch (Exception error) {
                if (attempt == ATTEMPTS_MAX) {
                    throw error;
                }
                Thread.sleep(500);
            }
        }
    }

    private Message message(int number) {
        Message message = new Message(topic, "T" + (number & 3), body);
        if (delayLevel > 0) {
            message.setDelayTimeLevel(delayLevel);
        }
        return message;
    }

    private List<Message> messages(int number) {
        List<Message> messages = new ArrayList<>(batch);
        for (int index = 0; index < batch; index++) {
            messages.add(message(number + index));
        }
        return messages;
    }

    private SendCallback note(long begun, int count, Semaphore room) {
        return new SendCallback() {
            @Override
            public void onSuccess(SendResult result) {
                noteResult(result, begun, count);
                room.release();
            }

            @Override
            public void onException(Throwable error) {
                noteFailure(error, Math.max(count, 1));
                room.release();
            }
        };
    }

    private void noteResult(SendResult result, long begun, int count) {
        if (!isMeasuring) {
            return;
        }
        if (result.getSendStatus() != SendStatus.SEND_OK) {
            noteFailure(new IllegalStateException(result.getSendStatus().name()), Math.max(count, 1));
        } else if (count > 0) {
            answers.addAndGet(count);
            sample(System.nanoTime() - begun);
        }
    }

    private void noteFailure(Throwable error, int count) {
        failure = error;
        failures.addAndGet(count);
    }

    private void sample(long latencyNs) {
        int at = samples.getAndIncrement();
        if (at < SAMPLES_MAX) {
            latenciesNs[at] = latencyNs;
        }
    }

    /** The time of a load: warming up, measured, over. */
    private final class Clock {
        private final long warm = System.nanoTime() + warmUpNs;
        private final com.sun.management.OperatingSystemMXBean machine =
            (com.sun.management.OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
        private long begun;
        private long spentNs;
        private volatile long ended;

        boolean isOpen() {
            return ended == 0;
        }

        boolean goesOn() {
            long now = System.nanoTime();
            if (ended != 0) {
                // Whoever asks once more has done other things meanwhile, as to end a consumer.
                return false;
            }
            if (begun == 0 && now >= warm) {
                begun = now;
                spentNs = -machine.getProcessCpuTime();
                isMeasuring = true;
                System.out.println("BEGIN");
                System.out.flush();
            } else if (begun != 0 && now >= begun + measuredNs) {
                isMeasuring = false;
                spentNs += machine.getProcessCpuTime();
                ended = now;
                return false;
            }
            return true;
        }

        void tell() {
            int count = Math.min(samples.get(), SAMPLES_MAX);
            long[] sorted = Arrays.copyOf(latenciesNs, count);
            Arrays.sort(sorted);
            System.out.printf(
                Locale.ROOT,
                "END {\"count\":%d,\"failed\":%d,\"seconds\":%.6f,\"client_seconds\":%.6f,\"p50_us\":%.1f,"
                    + "\"p99_us\":%.1f,\"p999_us\":%.1f,\"reason\":\"%s\"}%n",
                answers.get(), failures.get(), (ended - begun) / 1e9, spentNs / 1e9, at(sorted, 0.5),
                at(sorted, 0.99), at(sorted, 0.999),
                failure == null ? "" : failure.toString().replaceAll("[^A-Za-z0-9 .:_-]", " "));
            System.out.flush();
        }

        private double at(long[] sorted, double share) {
            return sorted.length == 0 ? 0 : sorted[Math.min((int) (sorted.length * share), sorted.length - 1)] / 1e3;
        }
    }
}
