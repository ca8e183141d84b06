import java.util.List;
import java.util.Set;

import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** A message that is never consumed comes back as often as the group allows, then becomes a dead letter. */
public final class Retry {
    public static void main(String[] arguments) {
        Check.main(() -> run(arguments[0], arguments[1]));
    }

    private static void run(String nameServer, String topic) throws Exception {
        DefaultMQProducer producer = Check.producer(nameServer, "retry");
        Check.isOk(producer.send(Check.message(topic, "tag", "bad-key", "bad")));
        Check.isOk(producer.send(Check.message(topic, "tag", "good-key", "good")));
        String group = topic + "-group";
        List<Integer> tries = Check.list();
        List<String> ids = Check.list();
        List<String> good = Check.list();
        DefaultMQPushConsumer consumer = Check.consumer(nameServer, group, topic, "*");
        consumer.setMaxReconsumeTimes(2);
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                if (Check.text(message).equals("good")) {
                    good.add("good");
                    continue;
                }
                Check.same(topic, message.getTopic(), "topic of a retried message");
                ids.add(message.getMsgId());
                tries.add(message.getReconsumeTimes());
                context.setDelayLevelWhenNextConsume(1);
                return ConsumeConcurrentlyStatus.RECONSUME_LATER;
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        // The client learns the route of the retry topic up to 30 s after its start and reads the topic up to 20 s later.
        Check.until(() -> tries.size() == 3, 90, () -> "tries " + tries);
        Check.same(List.of(0, 1, 2), tries, "retry counts");
        Check.same(1, Set.copyOf(ids).size(), "unique ids of the tries");
        Check.same(List.of("good"), good, "what was consumed");

        DefaultLitePullConsumer dead = new DefaultLitePullConsumer(topic + "-dead");
        dead.setNamesrvAddr(nameServer);
        dead.setAutoCommit(false);
        dead.start();
        MessageQueue[] queue = new MessageQueue[1];
        Check.until(() -> {
            try {
                queue[0] = dead.fetchMessageQueues("%DLQ%" + group).iterator().next();
                return true;
            } catch (org.apache.rocketmq.client.exception.MQClientException noRouteYet) {
                return false;
            }
        }, 60, () -> "the topic of dead letters");
        dead.assign(List.of(queue[0]));
        dead.seekToBegin(queue[0]);
        List<MessageExt> letters = Check.list();
        // The first pull may be under way before the seek, at the end of the queue, where the broker holds it 20 s.
        Check.until(() -> letters.addAll(dead.poll(500)), 60, () -> "the dead letter");
        Check.same(List.of("bad"), Check.sortedTexts(letters), "dead letters");
        MessageExt letter = letters.get(0);
        Check.same("bad-key", letter.getKeys(), "keys of the dead letter");
        Check.same(ids.get(0), letter.getMsgId(), "unique id of the dead letter");
        Check.same("tag", letter.getTags(), "tags of the dead letter");
        dead.shutdown();
        consumer.shutdown();
        producer.shutdown();
        Check.same(3, tries.size(), "tries at the end");
    }
}
