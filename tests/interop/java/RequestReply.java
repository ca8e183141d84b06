import java.nio.charset.StandardCharsets;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;

import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.exception.RequestTimeoutException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.RequestCallback;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/** Requests that a consumer answers, small and large, and one that nobody answers. */
public final class RequestReply {
    public static void main(String[] arguments) {
        Check.main(() -> run(arguments[0], arguments[1]));
    }

    /**
     * The reply, or what came instead. With a callback and a selector: the client of 5.3.3 ends the other forms
     * as soon as the request is stored.
     */
    private static Object request(DefaultMQProducer asker, Message message, long timeout) throws Exception {
        CompletableFuture<Object> outcome = new CompletableFuture<>();
        asker.request(message, (queues, asked, argument) -> queues.get(0), null, new RequestCallback() {
            @Override
            public void onSuccess(Message reply) {
                outcome.complete(reply);
            }

            @Override
            public void onException(Throwable error) {
                outcome.complete(error);
            }
        }, timeout);
        return outcome.get(60, TimeUnit.SECONDS);
    }

    private static void run(String nameServer, String topic) throws Exception {
        DefaultMQProducer asker = Check.producer(nameServer, topic + "-asker");
        // A client of its own, as in real life, where the two are different processes.
        DefaultMQProducer answerer = new DefaultMQProducer(topic + "-answerer");
        answerer.setNamesrvAddr(nameServer);
        answerer.setInstanceName("answerer");
        answerer.start();
        Check.isOk(asker.send(Check.message(topic, "", "", "no request")));
        DefaultMQPushConsumer consumer = Check.consumer(nameServer, topic + "-group", topic, "*");
        AtomicBoolean isReading = new AtomicBoolean();
        consumer.setInstanceName("answerer");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                String text = Check.text(message);
                isReading.set(true);
                if (text.startsWith("ask")) {
                    try {
                        byte[] body = ("re: " + text).getBytes(StandardCharsets.UTF_8);
                        Check.isOk(answerer.send(MessageUtil.createReplyMessage(message, body), 3000));
                    } catch (Exception error) {
                        error.printStackTrace(System.out);
                        return ConsumeConcurrentlyStatus.RECONSUME_LATER;
                    }
                }
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        Check.until(isReading::get, 60, () -> "the message that is no request");
        for (int number = 0; number < 20; number++) {
            String text = "ask " + number + (number % 5 == 4 ? "x".repeat(20_000) : "");
            Object reply = request(asker, Check.message(topic, "", "", text), 30_000);
            Check.that(reply instanceof Message, "reply " + number + ": " + reply);
            String body = new String(((Message) reply).getBody(), StandardCharsets.UTF_8);
            Check.same("re: " + text, body, "reply " + number);
        }
        Object nothing = request(asker, Check.message(topic, "", "", "silence"), 1500);
        Check.that(nothing instanceof RequestTimeoutException, "a request without reply ended with " + nothing);
        consumer.shutdown();
        answerer.shutdown();
        asker.shutdown();
    }
}
