//! What clients written in Rust do: each case prints OK, or what was not so and ends with 1.

use std::collections::BTreeMap;
use std::process::exit;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rocketmq_client_rust::consumer::default_mq_push_consumer::DefaultMQPushConsumer;
use rocketmq_client_rust::consumer::listener::consume_concurrently_context::ConsumeConcurrentlyContext;
use rocketmq_client_rust::consumer::listener::consume_concurrently_status::ConsumeConcurrentlyStatus;
use rocketmq_client_rust::consumer::listener::message_listener_concurrently::MessageListenerConcurrently;
use rocketmq_client_rust::consumer::mq_push_consumer::MQPushConsumer;
use rocketmq_client_rust::producer::default_mq_producer::DefaultMQProducer;
use rocketmq_client_rust::producer::mq_producer::MQProducer;
use rocketmq_common::common::consumer::consume_from_where::ConsumeFromWhere;
use rocketmq_common::common::message::message_ext::MessageExt;
use rocketmq_common::common::message::message_single::Message;
use rocketmq_error::RocketMQResult;
use rocketmq_rust::rocketmq;

const COUNT: usize = 12;

type Tries = Arc<Mutex<BTreeMap<String, usize>>>;

struct Listener {
    tries: Tries,
}

impl MessageListenerConcurrently for Listener {
    fn consume_message(
        &self,
        messages: &[&MessageExt],
        _context: &ConsumeConcurrentlyContext,
    ) -> RocketMQResult<ConsumeConcurrentlyStatus> {
        for message in messages {
            let body = message.body().unwrap_or_default();
            let text = String::from_utf8_lossy(&body).to_string();
            *self.tries.lock().unwrap().entry(text).or_insert(0) += 1;
        }
        Ok(ConsumeConcurrentlyStatus::ConsumeSuccess)
    }
}

#[rocketmq::main]
pub async fn main() -> RocketMQResult<()> {
    let arguments: Vec<String> = std::env::args().collect();
    let (name_server, topic) = (arguments[2].clone(), arguments[3].clone());
    let mut producer = DefaultMQProducer::builder()
        .producer_group(format!("{topic}-producers"))
        .name_server_addr(name_server.clone())
        .build();
    producer.start().await?;
    // The client learns its name server in the background, and refuses to send before.
    tokio::time::sleep(Duration::from_secs(3)).await;
    for number in 0..COUNT {
        let text = format!("m-{number:02}");
        let message = Message::with_tags(topic.as_str(), "tag", text.as_bytes());
        println!("{:?}", producer.send_with_timeout(message, 10_000).await?);
    }

    let tries: Tries = Arc::default();
    let mut consumer = DefaultMQPushConsumer::builder()
        .consumer_group(format!("{topic}-group"))
        .name_server_addr(name_server)
        .consume_from_where(ConsumeFromWhere::ConsumeFromFirstOffset)
        .build();
    consumer.subscribe(topic.as_str(), "tag")?;
    consumer.register_message_listener_concurrently(Listener { tries: tries.clone() });
    consumer.start().await?;
    let wanted: BTreeMap<String, usize> = (0..COUNT)
        .map(|number| (format!("m-{number:02}"), 1))
        .collect();
    let end = Instant::now() + Duration::from_secs(100);
    loop {
        let found = tries.lock().unwrap().clone();
        if found == wanted {
            break;
        }
        if Instant::now() > end {
            println!("wanted {wanted:?}\ngot    {found:?}");
            exit(1);
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    println!("OK");
    exit(0);
}
