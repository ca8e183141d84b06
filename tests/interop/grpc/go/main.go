// Cases of the official Go client: each prints OK, or what was wrong and ends with 1.
// `program CASE ENDPOINT TOPIC`; the consumer groups are named after the topic.
package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	rmq "github.com/apache/rocketmq-clients/golang/v5"
	"github.com/apache/rocketmq-clients/golang/v5/credentials"
	v2 "github.com/apache/rocketmq-clients/golang/v5/protocol/v2"
)

const (
	patience = 60 * time.Second
	poll     = 5 * time.Second
)

// Peer is the proxy under test, one topic, and the credentials of one case.
type Peer struct {
	endpoint, topic, secret string
}

func main() {
	peer := &Peer{os.Args[2], os.Args[3], os.Getenv("PEER_SECRET_KEY")}
	cases := map[string]func(*Peer){
		"normal": normal, "transport": transport, "fifo": fifo, "fifo_push": fifoPush, "delay": delay,
		"recall": recall, "transaction": transaction, "check": check, "priority": priority,
		"invisible": invisible, "push": push, "dead": dead, "fifo_dead": fifoDead, "filters": filters,
		"refused": refused, "acl": acl,
	}
	cases[os.Args[1]](peer)
	fmt.Println("OK")
}

func fail(format string, values ...any) {
	fmt.Printf(format+"\n", values...)
	os.Exit(1)
}

func must(err error) {
	if err != nil {
		fail("%v", err)
	}
}

func same(found, wanted any, what string) {
	if !reflect.DeepEqual(found, wanted) {
		fail("%s: expected %v, got %v", what, wanted, found)
	}
}

func until(condition func() bool, what func() string) {
	for end := time.Now().Add(patience); !condition(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			fail("not in time: %s", what())
		}
	}
}

func (peer *Peer) group() string { return peer.topic + "-group" }

func (peer *Peer) config(group string) *rmq.Config {
	keys := &credentials.SessionCredentials{AccessKey: os.Getenv("PEER_ACCESS_KEY"), AccessSecret: peer.secret}
	return &rmq.Config{Endpoint: peer.endpoint, ConsumerGroup: group, Credentials: keys}
}

func (peer *Peer) tryProducer(topic string, options ...rmq.ProducerOption) (rmq.Producer, error) {
	producer, err := rmq.NewProducer(peer.config(""), append(options, rmq.WithTopics(topic))...)
	if err != nil {
		return nil, err
	}
	return producer, producer.Start()
}

func (peer *Peer) producer(options ...rmq.ProducerOption) rmq.Producer {
	producer, err := peer.tryProducer(peer.topic, options...)
	must(err)
	return producer
}

func (peer *Peer) trySimple(group, topic string, filter *rmq.FilterExpression) (rmq.SimpleConsumer, error) {
	filters := map[string]*rmq.FilterExpression{topic: filter}
	consumer, err := rmq.NewSimpleConsumer(peer.config(group), rmq.WithSimpleAwaitDuration(poll),
		rmq.WithSimpleSubscriptionExpressions(filters))
	if err != nil {
		return nil, err
	}
	return consumer, consumer.Start()
}

func (peer *Peer) simple(group, topic string, filter *rmq.FilterExpression) rmq.SimpleConsumer {
	consumer, err := peer.trySimple(group, topic, filter)
	must(err)
	return consumer
}

func (peer *Peer) own() rmq.SimpleConsumer { return peer.simple(peer.group(), peer.topic, rmq.SUB_ALL) }

func (peer *Peer) push(consume func(*rmq.MessageView) bool) rmq.PushConsumer {
	listener := &rmq.FuncMessageListener{Consume: func(message *rmq.MessageView) rmq.ConsumerResult {
		if consume(message) {
			return rmq.SUCCESS
		}
		return rmq.FAILURE
	}}
	filters := map[string]*rmq.FilterExpression{peer.topic: rmq.SUB_ALL}
	consumer, err := rmq.NewPushConsumer(peer.config(peer.group()), rmq.WithPushAwaitDuration(poll),
		rmq.WithPushSubscriptionExpressions(filters), rmq.WithPushMessageListener(listener))
	must(err)
	must(consumer.Start())
	return consumer
}

func (peer *Peer) message(text string, changes ...func(*rmq.Message)) *rmq.Message {
	message := &rmq.Message{Topic: peer.topic, Body: []byte(text)}
	for _, change := range changes {
		change(message)
	}
	return message
}

func trySend(producer rmq.Producer, message *rmq.Message) (*rmq.SendReceipt, error) {
	receipts, err := producer.Send(context.Background(), message)
	if err != nil {
		return nil, err
	}
	return receipts[0], nil
}

func send(producer rmq.Producer, message *rmq.Message) *rmq.SendReceipt {
	receipt, err := trySend(producer, message)
	must(err)
	return receipt
}

func inGroup(group string) func(*rmq.Message) {
	return func(message *rmq.Message) { message.SetMessageGroup(group) }
}

func at(moment time.Time) func(*rmq.Message) {
	return func(message *rmq.Message) { message.SetDelayTimestamp(moment) }
}

func texts(messages []*rmq.MessageView) []string {
	found := []string{}
	for _, message := range messages {
		found = append(found, string(message.GetBody()))
	}
	return found
}

// receiveOnce polls once; the client reports an empty poll as an error.
func receiveOnce(consumer rmq.SimpleConsumer, batch int32) []*rmq.MessageView {
	got, err := consumer.Receive(context.Background(), batch, 40*time.Second)
	var status *rmq.ErrRpcStatus
	if errors.As(err, &status) && status.GetCode() == int32(v2.Code_MESSAGE_NOT_FOUND) {
		return nil
	}
	must(err)
	return got
}

// receive receives and acknowledges until count messages have arrived.
func receive(consumer rmq.SimpleConsumer, count int, batch int32) []*rmq.MessageView {
	got := []*rmq.MessageView{}
	for end := time.Now().Add(patience); len(got) < count; {
		if time.Now().After(end) {
			fail("expected %d messages, got %v", count, texts(got))
		}
		for _, message := range receiveOnce(consumer, batch) {
			must(consumer.Ack(context.Background(), message))
			got = append(got, message)
		}
	}
	return got
}

// drained does one whole poll, which must bring no message.
func drained(consumer rmq.SimpleConsumer) {
	same(texts(receiveOnce(consumer, 16)), []string{}, "messages left")
}

func mustRefuse(err error, words ...string) {
	if err == nil {
		fail("was not refused")
	}
	for _, word := range words {
		if strings.Contains(err.Error(), word) {
			return
		}
	}
	fail("refused with other words: %v", err)
}

// Tries are the deliveries that a listener has seen, in order.
type Tries struct {
	lock sync.Mutex
	seen []string
}

// failing fails for a text until its delivery number good.
func (tries *Tries) failing(text string, good int) func(*rmq.MessageView) bool {
	return func(message *rmq.MessageView) bool {
		tries.lock.Lock()
		defer tries.lock.Unlock()
		tries.seen = append(tries.seen, string(message.GetBody()))
		return string(message.GetBody()) != text || len(of(tries.seen, text)) >= good
	}
}

func (tries *Tries) all() []string {
	tries.lock.Lock()
	defer tries.lock.Unlock()
	return slices.Clone(tries.seen)
}

func of(texts []string, prefix string) []string {
	return slices.DeleteFunc(slices.Clone(texts), func(text string) bool { return !strings.HasPrefix(text, prefix) })
}

// checker commits what begins with "commit", and rolls back the rest.
func checker(tries *Tries) rmq.ProducerOption {
	return rmq.WithTransactionChecker(&rmq.TransactionChecker{Check: func(message *rmq.MessageView) rmq.TransactionResolution {
		tries.failing("", 0)(message)
		if strings.HasPrefix(string(message.GetBody()), "commit") {
			return rmq.COMMIT
		}
		return rmq.ROLLBACK
	}})
}

func numbered(prefix string, count int) []string {
	found := []string{}
	for number := range count {
		found = append(found, fmt.Sprintf("%s%d", prefix, number))
	}
	return found
}

func normal(peer *Peer) {
	producer, consumer := peer.producer(), peer.own()
	for number := range 12 {
		receipt := send(producer, peer.message(fmt.Sprintf("m-%d", number), func(message *rmq.Message) {
			message.SetTag("tag")
			message.SetKeys(fmt.Sprintf("key-%d", number))
			message.AddProperty("number", strconv.Itoa(number))
		}))
		same(len(receipt.MessageID), 34, "length of a message id")
	}
	got := receive(consumer, 12, 16)
	found, wanted := texts(got), numbered("m-", 12)
	slices.Sort(found)
	slices.Sort(wanted)
	same(found, wanted, "bodies")
	for _, message := range got {
		number := string(message.GetBody())[2:]
		same(*message.GetTag(), "tag", "tag")
		same(message.GetKeys(), []string{"key-" + number}, "keys")
		same(message.GetProperties(), map[string]string{"number": number}, "properties")
		same(message.GetDeliveryAttempt(), int32(1), "delivery attempt")
		if age := time.Since(*message.GetBornTimestamp()); math.Abs(age.Seconds()) > 300 {
			fail("born %v ago", age)
		}
	}
	drained(consumer)
	must(producer.GracefulStop())
	must(consumer.GracefulStop())
}

// transport: the client uses TLS by default, without a look at the certificate; here it uses plaintext.
func transport(peer *Peer) {
	rmq.EnableSsl = false
	normal(peer)
}

// sendFifo calls between before it sends the messages from number 3 on.
func sendFifo(peer *Peer, between func()) {
	producer := peer.producer()
	for number := range 6 {
		if number == 3 {
			between()
		}
		for _, group := range []string{"a", "b"} {
			send(producer, peer.message(fmt.Sprintf("%s-%d", group, number), inGroup(group)))
		}
	}
}

func fifo(peer *Peer) {
	consumer := peer.own()
	sendFifo(peer, func() {})
	got := receive(consumer, 12, 16)
	for _, group := range []string{"a", "b"} {
		same(of(texts(got), group), numbered(group+"-", 6), "order")
	}
	same(*got[0].GetMessageGroup(), string(got[0].GetBody()[:1]), "message group")
}

// fifoPush: the next messages of a group wait on the server until one that fails was tried again. Inside one
// received batch this client does not wait, so they are sent after the failure.
func fifoPush(peer *Peer) {
	tries := &Tries{}
	peer.push(tries.failing("a-2", 2))
	sendFifo(peer, func() {
		until(func() bool { return len(of(tries.all(), "a-2")) > 0 }, func() string { return "a-2" })
	})
	until(func() bool { return len(tries.all()) >= 13 }, func() string { return fmt.Sprint(tries.all()) })
	same(of(tries.all(), "a"), []string{"a-0", "a-1", "a-2", "a-2", "a-3", "a-4", "a-5"}, "order of a")
	same(of(tries.all(), "b"), numbered("b-", 6), "order of b")
}

func delay(peer *Peer) {
	producer, consumer := peer.producer(), peer.own()
	start := time.Now()
	for _, wait := range []int{6, 3} {
		send(producer, peer.message(strconv.Itoa(wait), at(start.Add(time.Duration(wait)*time.Second))))
	}
	for _, wait := range []int{3, 6} {
		same(texts(receive(consumer, 1, 16)), []string{strconv.Itoa(wait)}, "message")
		if passed := time.Since(start); passed < time.Duration(wait-1)*time.Second {
			fail("after %v already", passed)
		}
	}
}

func recall(peer *Peer) {
	producer, consumer := peer.producer(), peer.own()
	moment := time.Now().Add(6 * time.Second)
	receipt := send(producer, peer.message("recalled", at(moment)))
	send(producer, peer.message("kept", at(moment.Add(time.Second))))
	id, err := producer.Recall(context.Background(), peer.topic, receipt.RecallHandle)
	must(err)
	same(id, receipt.MessageID, "recalled message")
	same(texts(receive(consumer, 1, 16)), []string{"kept"}, "messages")
	drained(consumer)
}

func sendHalf(peer *Peer, producer rmq.Producer, text string) rmq.Transaction {
	open := producer.BeginTransaction()
	_, err := producer.SendWithTransaction(context.Background(), peer.message(text), open)
	must(err)
	return open
}

func transaction(peer *Peer) {
	checks := &Tries{}
	producer, consumer := peer.producer(checker(checks)), peer.own()
	must(sendHalf(peer, producer, "rolled back").RollBack())
	must(sendHalf(peer, producer, "committed").Commit())
	same(texts(receive(consumer, 1, 16)), []string{"committed"}, "messages")
	drained(consumer)
	same(len(checks.all()), 0, "checks of ended transactions")
}

// check: the broker asks for the outcome of transactions that were never ended.
func check(peer *Peer) {
	checks := &Tries{}
	producer, consumer := peer.producer(checker(checks)), peer.own()
	sendHalf(peer, producer, "rollback later")
	sendHalf(peer, producer, "commit later")
	same(texts(receive(consumer, 1, 16)), []string{"commit later"}, "messages")
	until(func() bool { return len(of(checks.all(), "rollback")) > 0 }, func() string { return fmt.Sprint(checks.all()) })
	// A broker may ask twice, and then delivers what was committed twice.
	found := texts(receiveOnce(consumer, 16))
	same(of(found, "commit later"), found, "messages")
}

func priority(peer *Peer) {
	producer, consumer := peer.producer(), peer.own()
	for _, level := range []int32{1, 3, 2} {
		send(producer, peer.message(fmt.Sprint(level), func(message *rmq.Message) { must(message.SetPriority(level)) }))
	}
	same(texts(receive(consumer, 3, 1)), []string{"3", "2", "1"}, "order")
}

func invisible(peer *Peer) {
	producer, consumer := peer.producer(), peer.own()
	send(producer, peer.message("again"))
	got := []*rmq.MessageView{}
	until(func() bool { got = receiveOnce(consumer, 1); return len(got) > 0 }, func() string { return "a message" })
	start := time.Now()
	must(consumer.ChangeInvisibleDuration(got[0], 2*time.Second))
	second := receive(consumer, 1, 16)
	if passed := time.Since(start); passed < time.Second || passed > 30*time.Second {
		fail("came again after %v", passed)
	}
	same(texts(second), []string{"again"}, "second delivery")
	same(second[0].GetDeliveryAttempt(), int32(2), "delivery attempt")
	drained(consumer)
}

// push: a listener's failure brings the message again, with a higher count.
func push(peer *Peer) {
	lock, seen := sync.Mutex{}, map[string][]int32{}
	wanted := map[string][]int32{}
	consumer := peer.push(func(message *rmq.MessageView) bool {
		lock.Lock()
		defer lock.Unlock()
		text := string(message.GetBody())
		seen[text] = append(seen[text], message.GetDeliveryAttempt())
		return text != "m-3" || message.GetDeliveryAttempt() > 1
	})
	producer := peer.producer()
	for _, text := range numbered("m-", 20) {
		wanted[text] = []int32{1}
		send(producer, peer.message(text))
	}
	wanted["m-3"] = []int32{1, 2}
	until(func() bool {
		lock.Lock()
		defer lock.Unlock()
		return len(seen) == 20 && len(seen["m-3"]) == 2
	}, func() string { return fmt.Sprint(seen) })
	same(seen, wanted, "deliveries")
	must(producer.GracefulStop())
	must(consumer.GracefulStop())
}

func assertLetters(peer *Peer, wanted string) {
	letters := peer.simple(peer.topic+"-letters", "%DLQ%"+peer.group(), rmq.SUB_ALL)
	same(texts(receive(letters, 1, 16)), []string{wanted}, "dead letters")
}

// dead: a group with one retry; a message that fails twice is in the dead letter queue.
func dead(peer *Peer) {
	tries := &Tries{}
	peer.push(tries.failing("bad", math.MaxInt))
	producer := peer.producer()
	for _, text := range []string{"good", "bad", "fine"} {
		send(producer, peer.message(text))
	}
	assertLetters(peer, "bad")
	found := tries.all()
	slices.Sort(found)
	same(found, []string{"bad", "bad", "fine", "good"}, "deliveries")
}

// fifoDead: the client itself sends an ordered message to the dead letter queue, and consumes the next.
func fifoDead(peer *Peer) {
	tries := &Tries{}
	peer.push(tries.failing("a-1", math.MaxInt))
	producer := peer.producer()
	for _, text := range numbered("a-", 4) {
		send(producer, peer.message(text, inGroup("a")))
		until(func() bool { return len(of(tries.all(), text)) > 0 }, func() string { return text })
	}
	until(func() bool { return len(tries.all()) >= 5 }, func() string { return fmt.Sprint(tries.all()) })
	same(tries.all(), []string{"a-0", "a-1", "a-1", "a-2", "a-3"}, "deliveries")
	assertLetters(peer, "a-1")
}

func filters(peer *Peer) {
	sql := rmq.NewFilterExpressionWithType("n >= 4 AND TAGS <> 'c'", rmq.SQL92)
	byTag := peer.simple(peer.topic+"-tag", peer.topic, rmq.NewFilterExpression("a||b"))
	bySql := peer.simple(peer.topic+"-sql", peer.topic, sql)
	producer := peer.producer()
	for number := range 9 {
		send(producer, peer.message(strconv.Itoa(number), func(message *rmq.Message) {
			message.SetTag("abc"[number%3 : number%3+1])
			message.AddProperty("n", strconv.Itoa(number))
		}))
	}
	for wanted, consumer := range map[string]rmq.SimpleConsumer{"013467": byTag, "467": bySql} {
		found := texts(receive(consumer, len(wanted), 16))
		slices.Sort(found)
		same(strings.Join(found, ""), wanted, "messages")
		drained(consumer)
	}
}

// refused: what no server can do is refused with the code that says why.
func refused(peer *Peer) {
	_, err := peer.tryProducer(peer.topic + "-missing")
	mustRefuse(err, "TOPIC_NOT_FOUND", "No topic route")
	producer := peer.producer()
	_, err = trySend(producer, peer.message("x", inGroup("group")))
	mustRefuse(err, "type")
	_, err = peer.trySimple(peer.group(), peer.topic+"-missing", rmq.SUB_ALL)
	mustRefuse(err, "TOPIC_NOT_FOUND", "No topic route")
	send(producer, peer.message("the client still works"))
}

func acl(peer *Peer) {
	normal(peer)
	stranger := &Peer{peer.endpoint, peer.topic, "another secret"}
	_, err := stranger.tryProducer(peer.topic)
	mustRefuse(err, "UNAUTHORIZED")
	_, err = peer.tryProducer("forbidden")
	mustRefuse(err, "UNAUTHORIZED")
}
