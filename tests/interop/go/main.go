// What clients written in Go do: each case prints OK, or what was not so and ends with 1.
package main

import (
	"context"
	"fmt"
	"os"
	"sort"
	"strings"
	"sync"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/admin"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
	"github.com/apache/rocketmq-client-go/v2/rlog"
)

const count = 12

func must(err error) {
	if err != nil {
		fail("%v", err)
	}
}

func fail(format string, values ...interface{}) {
	fmt.Printf(format+"\n", values...)
	os.Exit(1)
}

// got collects what consumers get, and how often.
type got struct {
	lock  sync.Mutex
	tries map[string]int
}

func (found *got) add(text string) int {
	found.lock.Lock()
	defer found.lock.Unlock()
	found.tries[text]++
	return found.tries[text]
}

func (found *got) String() string {
	found.lock.Lock()
	defer found.lock.Unlock()
	var words []string
	for text, tries := range found.tries {
		words = append(words, fmt.Sprintf("%s:%d", text, tries))
	}
	sort.Strings(words)
	return strings.Join(words, " ")
}

func (found *got) awaitExactly(wanted string, patience time.Duration) {
	for end := time.Now().Add(patience); found.String() != wanted; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			fail("wanted %s\ngot    %s", wanted, found)
		}
	}
}

func wanted(again string) string {
	var words []string
	for number := 0; number < count; number++ {
		text := fmt.Sprintf("m-%02d", number)
		tries := 1
		if text == again {
			tries = 2
		}
		words = append(words, fmt.Sprintf("%s:%d", text, tries))
	}
	return strings.Join(words, " ")
}

// send makes the topic by its first message; every way to send is used.
func send(nameServer, topic string) {
	made, err := rocketmq.NewProducer(producer.WithNameServer([]string{nameServer}),
		producer.WithGroupName(topic+"-producers"), producer.WithRetry(2))
	must(err)
	must(made.Start())
	text := func(number int) *primitive.Message {
		message := primitive.NewMessage(topic, []byte(fmt.Sprintf("m-%02d", number)))
		return message.WithTag("tag").WithKeys([]string{fmt.Sprint("key-", number)})
	}
	check := func(result *primitive.SendResult, err error) {
		must(err)
		if result.Status != primitive.SendOK {
			fail("status %v", result.Status)
		}
	}
	for number := 0; number < 6; number++ {
		check(made.SendSync(context.Background(), text(number)))
	}
	check(made.SendSync(context.Background(), text(6), text(7), text(8)))
	var answered sync.WaitGroup
	for number := 9; number < 11; number++ {
		answered.Add(1)
		must(made.SendAsync(context.Background(), func(_ context.Context, result *primitive.SendResult, err error) {
			check(result, err)
			answered.Done()
		}, text(number)))
	}
	answered.Wait()
	must(made.SendOneWay(context.Background(), text(11)))
	defer made.Shutdown()
	time.Sleep(100 * time.Millisecond) // nothing tells when a one-way send has left, and Shutdown drops it
}

// pull asks for no number of messages, which is the client's default: each answer has one.
func pull(nameServer, topic string) {
	send(nameServer, topic)
	made, err := rocketmq.NewPullConsumer(consumer.WithNameServer([]string{nameServer}),
		consumer.WithGroupName(topic+"-group"), consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset))
	must(err)
	must(made.Subscribe(topic, consumer.MessageSelector{Type: consumer.TAG, Expression: "*"}))
	must(made.Start())
	found := &got{tries: map[string]int{}}
	all := wanted("")
	for end := time.Now().Add(90 * time.Second); found.String() != all; {
		if time.Now().After(end) {
			fail("wanted %s\ngot    %s", all, found)
		}
		limited, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		result, err := made.Poll(limited, time.Second)
		cancel()
		if err != nil {
			continue // nothing new within the time
		}
		for _, message := range result.GetMsgList() {
			found.add(string(message.Body))
		}
		made.ACK(context.Background(), result, consumer.ConsumeSuccess)
	}
	must(made.Shutdown())
}

func push(nameServer, topic string, isOrderly bool) {
	send(nameServer, topic)
	made, err := rocketmq.NewPushConsumer(consumer.WithNameServer([]string{nameServer}),
		consumer.WithGroupName(topic+"-group"), consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset),
		consumer.WithConsumerOrder(isOrderly), consumer.WithSuspendCurrentQueueTimeMillis(time.Second))
	must(err)
	found := &got{tries: map[string]int{}}
	listen := func(_ context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		for _, message := range messages {
			if tries := found.add(string(message.Body)); string(message.Body) == "m-03" && tries == 1 {
				if isOrderly {
					return consumer.SuspendCurrentQueueAMoment, nil
				}
				return consumer.ConsumeRetryLater, nil
			}
		}
		return consumer.ConsumeSuccess, nil
	}
	must(made.Subscribe(topic, consumer.MessageSelector{Type: consumer.TAG, Expression: "tag || other"}, listen))
	must(made.Start())
	found.awaitExactly(wanted("m-03"), 90*time.Second)
	must(made.Shutdown())
}

func tools(nameServer, topic, broker string) {
	made, err := admin.NewAdmin(admin.WithResolver(primitive.NewPassthroughResolver([]string{nameServer})))
	must(err)
	must(made.CreateTopic(context.Background(), admin.WithTopicCreate(topic), admin.WithBrokerAddrCreate(broker)))
	for end := time.Now().Add(45 * time.Second); ; time.Sleep(100 * time.Millisecond) {
		list, err := made.FetchAllTopicList(context.Background())
		must(err)
		if strings.Contains(strings.Join(list.TopicList, " "), topic) {
			break
		}
		if time.Now().After(end) {
			fail("no %s among %v", topic, list.TopicList)
		}
	}
	must(made.DeleteTopic(context.Background(), admin.WithTopicDelete(topic), admin.WithBrokerAddrDelete(broker)))
	must(made.Close())
}

func main() {
	rlog.SetLogLevel("error")
	nameServer, topic, broker := os.Args[2], os.Args[3], os.Args[4]
	switch os.Args[1] {
	case "pull":
		pull(nameServer, topic)
	case "push":
		push(nameServer, topic, false)
	case "orderly":
		push(nameServer, topic, true)
	case "admin":
		tools(nameServer, topic, broker)
	default:
		fail("no case %s", os.Args[1])
	}
	fmt.Println("OK")
}
