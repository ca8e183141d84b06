// Cases of the official Node.js client: each prints OK, or what was wrong and ends with 1.
// `node main.js CASE ENDPOINT TOPIC`; the consumer groups are named after the topic.
'use strict';

const assert = require('node:assert');
const { Producer, SimpleConsumer, PushConsumer, FilterExpression, ConsumeResult } = require('rocketmq-client-nodejs');
const { FilterType, TransactionResolution } = require('rocketmq-client-nodejs/proto/apache/rocketmq/v2/definition_pb');

const PATIENCE_MS = 60000;
const POLL_MS = 5000;
const NOT_FOUND = /4040[0-9]|No topic route|not exist|not found/i;

const textOf = message => message.body.toString();
const range = (count, make) => Array.from({ length: count }, (_, number) => make(number));
const padded = number => `m-${String(number).padStart(2, '0')}`;

/** The proxy under test, one topic, and the clients of one case. */
class Peer {
  constructor(endpoint, topic, { tls = false, secret = process.env.PEER_SECRET_KEY } = {}) {
    this.topic = topic;
    this.group = `${topic}-group`;
    const accessKey = process.env.PEER_ACCESS_KEY;
    const sessionCredentials = accessKey ? { accessKey, accessSecret: secret } : undefined;
    this.options = { endpoints: endpoint, namespace: '', sslEnabled: tls, requestTimeout: 10000, sessionCredentials };
  }

  async producer(checker, topic = this.topic) {
    return await started(new Producer({ ...this.options, topic, checker }));
  }

  async simple({ group = this.group, topic = this.topic, filter = '*' } = {}) {
    const subscriptions = new Map().set(topic, filter);
    const options = { ...this.options, consumerGroup: group, subscriptions, awaitDuration: POLL_MS };
    return await started(new SimpleConsumer(options));
  }

  /** A push consumer; `consume` is given the message and returns true for success. */
  async push(consume) {
    const messageListener = {
      consume: async message => (consume(message) ? ConsumeResult.SUCCESS : ConsumeResult.FAILURE),
    };
    const subscriptions = new Map().set(this.topic, '*');
    return await started(new PushConsumer({ ...this.options, consumerGroup: this.group, subscriptions, messageListener }));
  }

  message(text, fields = {}) {
    return { topic: this.topic, body: Buffer.from(text), ...fields };
  }
}

async function started(client) {
  await client.startup();
  return client;
}

/** Commits what begins with `commit`, and rolls back the rest. */
class Checker {
  seen = new Set();

  async check(message) {
    this.seen.add(textOf(message));
    return textOf(message).startsWith('commit') ? TransactionResolution.COMMIT : TransactionResolution.ROLLBACK;
  }
}

/** A listener that fails for one text until its delivery number `good`; records all deliveries. */
function failing(text, good) {
  const tries = [];
  const consume = message => {
    tries.push(textOf(message));
    return textOf(message) !== text || tries.filter(one => one === text).length >= good;
  };
  return { tries, consume };
}

async function until(condition, what) {
  for (const end = Date.now() + PATIENCE_MS; !condition();) {
    assert.ok(Date.now() < end, `not in time: ${what()}`);
    await new Promise(resolve => setTimeout(resolve, 20));
  }
}

/** Receives and acknowledges until `count` messages have arrived. */
async function receive(consumer, count, batch = 16) {
  const got = [];
  for (const end = Date.now() + PATIENCE_MS; got.length < count;) {
    assert.ok(Date.now() < end, `expected ${count} messages, got ${got.map(textOf)}`);
    for (const message of await consumer.receive(batch, 30000)) {
      await consumer.ack(message);
      got.push(message);
    }
  }
  return got;
}

/** One whole poll without a message. */
async function assertDrained(consumer) {
  assert.deepStrictEqual((await consumer.receive(16, 30000)).map(textOf), [], 'messages left');
}

async function assertRefused(body, words) {
  try {
    await body();
  } catch (error) {
    const said = `${error} ${error.cause ?? ''} ${error.cause?.cause ?? ''}`;
    assert.match(said, words);
    return;
  }
  assert.fail('was not refused');
}

async function normal(peer) {
  const producer = await peer.producer();
  const consumer = await peer.simple();
  for (let number = 0; number < 12; number++) {
    const properties = new Map().set('number', `${number}`);
    const receipt = await producer.send(peer.message(padded(number), { tag: 'tag', keys: [`key-${number}`], properties }));
    assert.strictEqual(receipt.messageId.length, 34);
  }
  const got = await receive(consumer, 12);
  assert.deepStrictEqual(got.map(textOf).sort(), range(12, padded));
  for (const message of got) {
    const number = Number(textOf(message).slice(2));
    const { tag, keys, deliveryAttempt } = message;
    assert.deepStrictEqual({ tag, keys, deliveryAttempt }, { tag: 'tag', keys: [`key-${number}`], deliveryAttempt: 1 });
    assert.ok(!message.corrupted);
    assert.deepStrictEqual([...message.properties], [['number', `${number}`]]);
    assert.ok(Math.abs(message.bornTimestamp - Date.now()) < 300000, `${message.bornTimestamp}`);
  }
  await assertDrained(consumer);
  await producer.shutdown();
  await consumer.shutdown();
}

/** The client uses plaintext by default; with TLS it verifies the certificate. */
async function transport(peer) {
  await normal(new Peer(peer.options.endpoints, peer.topic, { tls: true }));
}

async function fifo(peer) {
  const producer = await peer.producer();
  const consumer = await peer.simple();
  for (let number = 0; number < 6; number++) {
    for (const group of 'ab') await producer.send(peer.message(`${group}-${number}`, { messageGroup: group }));
  }
  const got = await receive(consumer, 12);
  for (const group of 'ab') {
    const found = got.filter(message => message.messageGroup === group).map(textOf);
    assert.deepStrictEqual(found, range(6, number => `${group}-${number}`));
  }
}

/** A message that fails once is tried again before the next of its group. */
async function fifo_push(peer) {
  const { tries, consume } = failing('a-2', 2);
  await peer.push(consume);
  const producer = await peer.producer();
  for (let number = 0; number < 6; number++) {
    for (const group of 'ab') await producer.send(peer.message(`${group}-${number}`, { messageGroup: group }));
  }
  await until(() => tries.length >= 13, () => `13 deliveries, got ${tries}`);
  assert.deepStrictEqual(tries.filter(text => text[0] === 'a'), ['a-0', 'a-1', 'a-2', 'a-2', 'a-3', 'a-4', 'a-5']);
  assert.deepStrictEqual(tries.filter(text => text[0] === 'b'), range(6, number => `b-${number}`));
}

async function delay(peer) {
  const producer = await peer.producer();
  const consumer = await peer.simple();
  const start = Date.now();
  for (const wait of [6000, 3000]) {
    await producer.send(peer.message(`${wait}`, { deliveryTimestamp: new Date(start + wait) }));
  }
  for (const wait of [3000, 6000]) {
    const [message] = await receive(consumer, 1);
    assert.strictEqual(textOf(message), `${wait}`);
    assert.ok(Date.now() >= start + wait - 1000, `${start + wait - Date.now()} ms too early`);
  }
}

async function recall(peer) {
  const producer = await peer.producer();
  const consumer = await peer.simple();
  const at = Date.now() + 6000;
  const receipt = await producer.send(peer.message('recalled', { deliveryTimestamp: new Date(at) }));
  await producer.send(peer.message('kept', { deliveryTimestamp: new Date(at + 1000) }));
  const recalled = await producer.recallMessage(peer.topic, receipt.recallHandle);
  assert.strictEqual(recalled.messageId, receipt.messageId);
  assert.deepStrictEqual((await receive(consumer, 1)).map(textOf), ['kept']);
  await assertDrained(consumer);
}

async function transaction(peer) {
  const checker = new Checker();
  const producer = await peer.producer(checker);
  const consumer = await peer.simple();
  for (const text of ['rolled back', 'committed']) {
    const open = producer.beginTransaction();
    await producer.send(peer.message(text, { tag: 'tag' }), open);
    await (text === 'committed' ? open.commit() : open.rollback());
  }
  assert.deepStrictEqual((await receive(consumer, 1)).map(textOf), ['committed']);
  await assertDrained(consumer);
  assert.deepStrictEqual([...checker.seen], [], 'checks of ended transactions');
}

/** The broker asks for the outcome of transactions that were never ended. */
async function check(peer) {
  const checker = new Checker();
  const producer = await peer.producer(checker);
  const consumer = await peer.simple();
  for (const text of ['rollback later', 'commit later']) {
    await producer.send(peer.message(text), producer.beginTransaction());
  }
  assert.deepStrictEqual((await receive(consumer, 1)).map(textOf), ['commit later']);
  await until(() => checker.seen.size === 2, () => `two checks, got ${[...checker.seen]}`);
  // A broker may ask twice, and then delivers what was committed twice.
  assert.ok((await consumer.receive(16, 30000)).every(message => textOf(message) === 'commit later'));
}

async function priority(peer) {
  const producer = await peer.producer();
  const consumer = await peer.simple();
  for (const level of [1, 3, 2]) await producer.send(peer.message(`${level}`, { priority: level }));
  const got = await receive(consumer, 3, 1);
  assert.deepStrictEqual(got.map(one => [textOf(one), one.priority]), [['3', 3], ['2', 2], ['1', 1]]);
}

async function invisible(peer) {
  const producer = await peer.producer();
  const consumer = await peer.simple();
  await producer.send(peer.message('again'));
  let got = [];
  for (const end = Date.now() + PATIENCE_MS; !got.length && Date.now() < end;) got = await consumer.receive(1, 40000);
  const start = Date.now();
  await consumer.changeInvisibleDuration(got[0], 2000);
  const [second] = await receive(consumer, 1);
  const passed = Date.now() - start;
  assert.ok(passed >= 1000 && passed < 30000, `came again after ${passed} ms`);
  assert.deepStrictEqual([textOf(second), second.deliveryAttempt], ['again', 2]);
  await assertDrained(consumer);
}

/** A listener's failure brings the message again, with a higher count. */
async function push(peer) {
  const seen = new Map();
  const consumer = await peer.push(message => {
    seen.set(textOf(message), [...(seen.get(textOf(message)) ?? []), message.deliveryAttempt]);
    return textOf(message) !== 'm-03' || message.deliveryAttempt > 1;
  });
  const producer = await peer.producer();
  for (let number = 0; number < 20; number++) await producer.send(peer.message(padded(number)));
  await until(() => seen.size === 20 && seen.get('m-03').length === 2, () => `got ${JSON.stringify([...seen])}`);
  assert.deepStrictEqual([...seen].sort(), range(20, number => [padded(number), number === 3 ? [1, 2] : [1]]));
  await producer.shutdown();
  await consumer.shutdown();
}

/** A group with one retry: a message that fails twice is in the dead letter queue. */
async function dead(peer) {
  const { tries, consume } = failing('bad', Infinity);
  await peer.push(consume);
  const producer = await peer.producer();
  for (const text of ['good', 'bad', 'fine']) await producer.send(peer.message(text));
  const letters = await peer.simple({ group: `${peer.topic}-letters`, topic: `%DLQ%${peer.group}` });
  assert.deepStrictEqual((await receive(letters, 1)).map(textOf), ['bad']);
  assert.deepStrictEqual(tries.sort(), ['bad', 'bad', 'fine', 'good']);
}

/** The client itself sends an ordered message to the dead letter queue, and consumes the next. */
async function fifo_dead(peer) {
  const { tries, consume } = failing('a-1', Infinity);
  await peer.push(consume);
  const producer = await peer.producer();
  for (let number = 0; number < 4; number++) await producer.send(peer.message(`a-${number}`, { messageGroup: 'a' }));
  const wanted = ['a-0', 'a-1', 'a-1', 'a-2', 'a-3'];
  await until(() => tries.length >= wanted.length, () => `${wanted}, got ${tries}`);
  assert.deepStrictEqual(tries, wanted);
  const letters = await peer.simple({ group: `${peer.topic}-letters`, topic: `%DLQ%${peer.group}` });
  assert.deepStrictEqual((await receive(letters, 1)).map(textOf), ['a-1']);
}

async function filters(peer) {
  const sql = new FilterExpression("n >= 4 AND TAGS <> 'c'", FilterType.SQL);
  const byTag = await peer.simple({ group: `${peer.topic}-tag`, filter: 'a||b' });
  const bySql = await peer.simple({ group: `${peer.topic}-sql`, filter: sql });
  const producer = await peer.producer();
  for (let number = 0; number < 9; number++) {
    const properties = new Map().set('n', `${number}`);
    await producer.send(peer.message(`${number}`, { tag: 'abc'[number % 3], properties }));
  }
  for (const [consumer, wanted] of [[byTag, '013467'], [bySql, '467']]) {
    assert.strictEqual((await receive(consumer, wanted.length)).map(textOf).sort().join(''), wanted);
    await assertDrained(consumer);
  }
}

/** What no server can do is refused with the code that says why. */
async function refused(peer) {
  await assertRefused(() => peer.producer(undefined, `${peer.topic}-missing`), NOT_FOUND);
  const producer = await peer.producer();
  await assertRefused(() => producer.send(peer.message('x', { messageGroup: 'group' })), /type/);
  await assertRefused(() => peer.simple({ topic: `${peer.topic}-missing` }), NOT_FOUND);
  await producer.send(peer.message('the client still works'));
}

async function acl(peer) {
  await normal(peer);
  const stranger = new Peer(peer.options.endpoints, peer.topic, { secret: 'another secret' });
  await assertRefused(() => stranger.producer(), /40100/);
  await assertRefused(() => peer.producer(undefined, 'forbidden'), /40100/);
}

const CASES = {
  ...{ normal, transport, fifo, fifo_push, delay, recall, transaction, check, priority },
  ...{ invisible, push, dead, fifo_dead, filters, refused, acl },
};
const [name, endpoint, topic] = process.argv.slice(2);
CASES[name](new Peer(endpoint, topic)).then(() => {
  console.log('OK');
  process.exit(0);
}, failure => {
  console.log(failure);
  process.exit(1);
});
