// What clients written for Node do: each case prints OK, or what was not so and ends with 1.
'use strict';

const assert = require('node:assert');
const { Producer, SimpleConsumer } = require('rocketmq-client-nodejs');

const COUNT = 12;

async function simple(endpoints, topic) {
  const producer = new Producer({ endpoints, namespace: '' });
  await producer.startup();
  const wanted = [];
  for (let number = 0; number < COUNT; number++) {
    const text = `m-${String(number).padStart(2, '0')}`;
    const receipt = await producer.send({ topic, tag: 'tag', keys: [`key-${number}`], body: Buffer.from(text) });
    assert.ok(receipt.messageId, 'a receipt has an id');
    wanted.push(text);
  }
  const consumer = new SimpleConsumer({
    consumerGroup: `${topic}-group`,
    endpoints,
    namespace: '',
    subscriptions: new Map().set(topic, 'tag'),
  });
  await consumer.startup();
  const got = [];
  for (const end = Date.now() + 90000; got.length < COUNT && Date.now() < end;) {
    for (const message of await consumer.receive(16, 30000)) {
      got.push(message.body.toString());
      assert.strictEqual(message.tag, 'tag');
      await consumer.ack(message);
    }
  }
  assert.deepStrictEqual(got.sort(), wanted);
  await producer.shutdown();
  await consumer.shutdown();
}

const cases = { simple };
const [name, endpoints, topic] = process.argv.slice(2);
cases[name](endpoints, topic).then(() => {
  console.log('OK');
  process.exit(0);
}, failure => {
  console.log(failure);
  process.exit(1);
});
