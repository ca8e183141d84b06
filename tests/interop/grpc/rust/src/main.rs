//! Cases of the official Rust client: each prints OK, or what was wrong and ends with 1.
//! `program CASE ENDPOINT TOPIC`; the consumer groups are named after the topic.

use std::collections::{BTreeSet, HashMap};
use std::env;
use std::fmt::Debug;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rocketmq::conf::{ClientOption, ProducerOption, SimpleConsumerOption};
use rocketmq::error::ClientError;
use rocketmq::model::common::{FilterExpression, FilterType};
use rocketmq::model::message::{MessageBuilder, MessageView};
use rocketmq::model::transaction::{Transaction, TransactionResolution};
use rocketmq::{Producer, SimpleConsumer};

const PATIENCE: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_secs(8);

/// The proxy under test, one topic, and the credentials of one case.
struct Peer {
    endpoint: String,
    topic: String,
    secret: Option<String>,
}

fn same<T: PartialEq + Debug>(found: T, wanted: T, what: &str) {
    assert!(found == wanted, "{what}: expected {wanted:?}, got {found:?}");
}

fn text(message: &MessageView) -> String {
    String::from_utf8_lossy(message.body()).to_string()
}

fn texts(messages: &[MessageView]) -> Vec<String> {
    messages.iter().map(text).collect()
}

fn sorted(mut texts: Vec<String>) -> Vec<String> {
    texts.sort();
    texts
}

fn numbered(prefix: &str, count: usize) -> Vec<String> {
    (0..count).map(|number| format!("{prefix}{number:02}")).collect()
}

fn unix_seconds() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() as i64
}

fn all() -> FilterExpression {
    FilterExpression::new(FilterType::Tag, "*")
}

impl Peer {
    fn option(&self) -> ClientOption {
        let mut option = ClientOption::default();
        option.set_access_url(self.endpoint.clone());
        option.set_timeout(Duration::from_secs(10));
        option.set_long_polling_timeout(POLL);
        if let Ok(key) = env::var("PEER_ACCESS_KEY") {
            option.set_access_key(key);
            option.set_secret_key(self.secret.clone().unwrap_or_default());
        }
        option
    }

    async fn try_producer(&self, topic: &str) -> Result<Producer, ClientError> {
        let mut option = ProducerOption::default();
        option.set_topics(vec![topic]);
        let mut producer = Producer::new(option, self.option())?;
        producer.start().await?;
        Ok(producer)
    }

    async fn producer(&self) -> Producer {
        self.try_producer(&self.topic).await.unwrap()
    }

    /// A producer whose checker commits what begins with "commit", and rolls back the rest.
    async fn transaction_producer(&self, seen: Arc<Mutex<BTreeSet<String>>>) -> Producer {
        let mut option = ProducerOption::default();
        option.set_topics(vec![self.topic.clone()]);
        let checker = move |_id: String, message: MessageView| {
            seen.lock().unwrap().insert(text(&message));
            match text(&message).starts_with("commit") {
                true => TransactionResolution::COMMIT,
                false => TransactionResolution::ROLLBACK,
            }
        };
        let made = Producer::new_transaction_producer(option, self.option(), Box::new(checker));
        let mut producer = made.unwrap();
        producer.start().await.unwrap();
        producer
    }

    async fn try_simple(&self, group: &str, topic: &str) -> Result<SimpleConsumer, ClientError> {
        let mut option = SimpleConsumerOption::default();
        option.set_topics(vec![topic]);
        option.set_consumer_group(format!("{}-{group}", self.topic));
        let mut consumer = SimpleConsumer::new(option, self.option())?;
        consumer.start().await?;
        Ok(consumer)
    }

    async fn simple(&self, group: &str) -> SimpleConsumer {
        self.try_simple(group, &self.topic).await.unwrap()
    }

    fn message(&self, text: &str) -> MessageBuilder {
        MessageBuilder::builder().set_topic(self.topic.clone()).set_body(text.as_bytes().to_vec())
    }

    async fn poll(&self, consumer: &SimpleConsumer, filter: &FilterExpression) -> Vec<MessageView> {
        consumer.receive_with(&self.topic, filter, 16, Duration::from_secs(30)).await.unwrap()
    }

    /// Receives and acknowledges until `count` messages have arrived.
    async fn receive(&self, consumer: &SimpleConsumer, filter: &FilterExpression, count: usize) -> Vec<MessageView> {
        let mut got = Vec::new();
        let end = Instant::now() + PATIENCE;
        while got.len() < count {
            assert!(Instant::now() < end, "expected {count} messages, got {:?}", texts(&got));
            for message in self.poll(consumer, filter).await {
                consumer.ack(&message).await.unwrap();
                got.push(message);
            }
        }
        got
    }

    /// One whole poll without a message.
    async fn drained(&self, consumer: &SimpleConsumer, filter: &FilterExpression) {
        same(texts(&self.poll(consumer, filter).await), Vec::new(), "messages left");
    }
}

fn assert_refused<T>(outcome: Result<T, ClientError>, words: &[&str]) {
    let said = match outcome {
        Ok(_) => panic!("was not refused"),
        Err(error) => format!("{error:?} {error}"),
    };
    assert!(words.iter().any(|word| said.contains(word)), "refused with other words: {said}");
}

async fn normal(peer: &Peer) {
    let (producer, consumer) = (peer.producer().await, peer.simple("group").await);
    for name in numbered("m-", 12) {
        let properties = HashMap::from([("number", name[2..].to_string())]);
        let message = peer.message(&name).set_tag("tag").set_keys(vec![format!("key-{name}")]);
        let receipt = producer.send(message.set_properties(properties).build().unwrap()).await.unwrap();
        same(receipt.message_id().len(), 34, "length of a message id");
    }
    let got = peer.receive(&consumer, &all(), 12).await;
    same(sorted(texts(&got)), numbered("m-", 12), "bodies");
    for message in &got {
        let name = text(message);
        same(message.tag(), Some("tag"), "tag");
        same(message.keys().to_vec(), vec![format!("key-{name}")], "keys");
        same(message.properties().get("number"), Some(&name[2..].to_string()), "property");
        same((message.properties().len(), message.delivery_attempt()), (1, 1), "properties, attempt");
    }
    peer.drained(&consumer, &all()).await;
    producer.shutdown().await.unwrap();
    consumer.shutdown().await.unwrap();
}

/// Several messages in one request: each is stored, and each has its receipt.
async fn batch(peer: &Peer) {
    let (producer, consumer) = (peer.producer().await, peer.simple("group").await);
    let messages = numbered("m-", 5).iter().map(|name| peer.message(name).set_tag("tag").build().unwrap()).collect();
    let receipts = producer.batch_send(messages).await.unwrap();
    let got = peer.receive(&consumer, &all(), 5).await;
    same(sorted(texts(&got)), numbered("m-", 5), "bodies");
    peer.drained(&consumer, &all()).await;
    // Java's proxy answers with one entry for all.
    if env::var("PEER_PROXY").unwrap_or_default() == "ours" {
        let wanted = got.iter().map(|message| message.message_id().to_string()).collect();
        same(sorted(receipts.iter().map(|one| one.message_id().to_string()).collect()), sorted(wanted), "receipts");
    }
}

async fn fifo(peer: &Peer) {
    let (producer, consumer) = (peer.producer().await, peer.simple("group").await);
    for number in 0..6 {
        for group in ["a-", "b-"] {
            let message = peer.message(&format!("{group}{number:02}")).set_message_group(group);
            producer.send(message.build().unwrap()).await.unwrap();
        }
    }
    let got = peer.receive(&consumer, &all(), 12).await;
    for group in ["a-", "b-"] {
        let own = got.iter().filter(|message| message.message_group() == Some(group));
        same(own.map(text).collect(), numbered(group, 6), "order");
    }
}

async fn delay(peer: &Peer) {
    let (producer, consumer) = (peer.producer().await, peer.simple("group").await);
    let start = unix_seconds();
    for wait in [6, 3] {
        let message = peer.message(&format!("{wait}")).set_delivery_timestamp(start + wait);
        producer.send(message.build().unwrap()).await.unwrap();
    }
    for wait in [3, 6] {
        same(texts(&peer.receive(&consumer, &all(), 1).await), vec![format!("{wait}")], "message");
        assert!(unix_seconds() >= start + wait - 1, "after {} s already", unix_seconds() - start);
    }
}

async fn transaction(peer: &Peer) {
    let seen = Arc::default();
    let (producer, consumer) = (peer.transaction_producer(Arc::clone(&seen)).await, peer.simple("group").await);
    for text in ["rolled back", "committed"] {
        let message = peer.message(text).enable_transaction().build().unwrap();
        let open = producer.send_transaction_message(message).await.unwrap();
        match text {
            "committed" => open.commit().await.unwrap(),
            _ => open.rollback().await.unwrap(),
        }
    }
    same(texts(&peer.receive(&consumer, &all(), 1).await), vec!["committed".to_string()], "messages");
    peer.drained(&consumer, &all()).await;
    same(seen.lock().unwrap().len(), 0, "checks of ended transactions");
}

/// The broker asks for the outcome of transactions that were never ended.
async fn check(peer: &Peer) {
    let seen = Arc::default();
    let (producer, consumer) = (peer.transaction_producer(Arc::clone(&seen)).await, peer.simple("group").await);
    for text in ["rollback later", "commit later"] {
        let message = peer.message(text).enable_transaction().build().unwrap();
        let _open = producer.send_transaction_message(message).await.unwrap();
    }
    same(texts(&peer.receive(&consumer, &all(), 1).await), vec!["commit later".to_string()], "messages");
    let end = Instant::now() + PATIENCE;
    while seen.lock().unwrap().len() < 2 {
        assert!(Instant::now() < end, "expected two checks, got {:?}", seen.lock().unwrap());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    // A broker may ask twice, and then delivers what was committed twice.
    let found = texts(&peer.poll(&consumer, &all()).await);
    assert!(found.iter().all(|text| text == "commit later"), "{found:?}");
}

async fn filters(peer: &Peer) {
    let by_tag = (peer.simple("tag").await, FilterExpression::new(FilterType::Tag, "a||b"), "013467");
    let sql = FilterExpression::new(FilterType::Sql, "n >= 4 AND TAGS <> 'c'");
    let by_sql = (peer.simple("sql").await, sql, "467");
    let producer = peer.producer().await;
    for number in 0..9 {
        let properties = HashMap::from([("n", format!("{number}"))]);
        let message = peer.message(&format!("{number}")).set_tag(["a", "b", "c"][number % 3]);
        producer.send(message.set_properties(properties).build().unwrap()).await.unwrap();
    }
    for (consumer, filter, wanted) in [by_tag, by_sql] {
        let got = peer.receive(&consumer, &filter, wanted.len()).await;
        same(sorted(texts(&got)).concat(), wanted.to_string(), "messages");
        peer.drained(&consumer, &filter).await;
    }
}

/// What no server can do is refused with the code that says why.
async fn refused(peer: &Peer) {
    let missing = format!("{}-missing", peer.topic);
    assert_refused(peer.try_producer(&missing).await, &["TOPIC_NOT_FOUND", "No topic route"]);
    let producer = peer.producer().await;
    let fifo = peer.message("x").set_message_group("group").build().unwrap();
    assert_refused(producer.send(fifo).await, &["type"]);
    assert_refused(peer.try_simple("group", &missing).await, &["TOPIC_NOT_FOUND", "No topic route"]);
    producer.send(peer.message("the client still works").build().unwrap()).await.unwrap();
}

async fn acl(peer: &Peer) {
    normal(peer).await;
    let (endpoint, topic) = (peer.endpoint.clone(), peer.topic.clone());
    let stranger = Peer { endpoint, topic, secret: Some("another secret".to_string()) };
    assert_refused(stranger.try_producer(&peer.topic).await, &["UNAUTHORIZED"]);
    assert_refused(peer.try_producer("forbidden").await, &["UNAUTHORIZED"]);
}

#[tokio::main]
async fn main() {
    std::panic::set_hook(Box::new(|failure| {
        println!("{failure}");
        std::process::exit(1);
    }));
    let arguments: Vec<String> = env::args().collect();
    let (endpoint, topic) = (arguments[2].clone(), arguments[3].clone());
    let peer = Peer { endpoint, topic, secret: env::var("PEER_SECRET_KEY").ok() };
    match arguments[1].as_str() {
        "normal" => normal(&peer).await,
        "batch" => batch(&peer).await,
        "fifo" => fifo(&peer).await,
        "delay" => delay(&peer).await,
        "transaction" => transaction(&peer).await,
        "check" => check(&peer).await,
        "filters" => filters(&peer).await,
        "refused" => refused(&peer).await,
        "acl" => acl(&peer).await,
        other => panic!("no case {other}"),
    }
    println!("OK");
    // What the client's tasks still do is not tested.
    std::process::exit(0);
}
