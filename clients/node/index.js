// Failback for Node: see README.md and index.d.ts.
'use strict';

const {randomUUID} = require('crypto');
const path = require('path');
const grpc = require('@grpc/grpc-js');
const loader = require('@grpc/proto-loader');

const DEFAULT_TARGET = 'unix:/run/failback/agent.sock';
const CALL_MS = 5000;
const RETRY_MS = 500;
const BATCH = 200;
// The sidecar comes back within moments: a channel must not wait for minutes.
const CHANNEL_OPTIONS = {'grpc.initial_reconnect_backoff_ms': 100, 'grpc.max_reconnect_backoff_ms': 1000};
// Codes of a sidecar that is away, or does not know the session: the call is made again in the next one.
const AWAY = new Set(['UNAVAILABLE', 'DEADLINE_EXCEEDED', 'CANCELLED', 'UNKNOWN', 'INTERNAL', 'ABORTED', 'NOT_FOUND',
  'FAILED_PRECONDITION', 'RESOURCE_EXHAUSTED'].map((name) => grpc.status[name]));

const PROTO = path.join(__dirname, 'proto');
const definition = loader.loadSync(
    path.join(PROTO, 'failback/registry/v1/registry.proto'),
    {includeDirs: [PROTO], keepCase: true, enums: String, longs: String, defaults: true, oneofs: true});
const {RegistryService} = grpc.loadPackageDefinition(definition).failback.registry.v1;

class Refused extends Error {
  constructor(code, message) {
    super(message);
    this.code = code;
  }
}

const nap = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
const keyOf = ({service, id, namespace = ''}) => ({namespace, service, instance_id: id});
const nameOf = (key) => JSON.stringify([key.namespace, key.service, key.instance_id]);

function toMessage(instance) {
  const {address, port, weight, zone = '', metadata = {}} = instance;
  return {key: keyOf(instance), address, port, zone, metadata, ...(weight === undefined ? {} : {weight})};
}

function toInstance(message) {
  return {
    service: message.key.service, id: message.key.instance_id, address: message.address, port: message.port,
    namespace: message.key.namespace,
    healthy: ['HEALTH_STATUS_UNSPECIFIED', 'HEALTH_STATUS_HEALTHY'].includes(message.status),
    weight: message._weight === undefined ? 100 : message.weight, zone: message.zone, metadata: message.metadata};
}

// The messages of a stream that is read, until it ends; then `error` has why.
async function* messagesOf(stream) {
  const messages = [];
  let ended = false;
  let wake = () => {};
  stream.on('data', (message) => { messages.push(message); wake(); });
  stream.on('error', (error) => { stream.failed = error; ended = true; wake(); });
  stream.on('end', () => { ended = true; wake(); });
  while (true) {
    while (messages.length) yield messages.shift();
    if (ended) return;
    await new Promise((resolve) => { wake = resolve; if (messages.length || ended) resolve(); });
  }
}

class Agent {
  constructor({target, name = '', ttl = 10} = {}) {
    this._client = new RegistryService(target || process.env.FAILBACK_TARGET || DEFAULT_TARGET,
        grpc.credentials.createInsecure(), CHANNEL_OPTIONS);
    this._name = name;
    this._ttl = ttl;
    this._incarnation = randomUUID();
    this._wanted = new Map();
    this._session = null;
    this._closed = false;
    this._streams = new Set();
    // Intents count in the order in which they arrive: one call at a time.
    this._sending = Promise.resolve();
    this._keeper = this._keep();
  }

  async register(instance) {
    const message = toMessage(instance);
    const name = nameOf(message.key);
    const before = this._wanted.get(name);
    this._wanted.set(name, message);
    try {
      await this._submit('Register', {registrations: [{instance: message}]});
    } catch (error) {
      if (before) this._wanted.set(name, before); else this._wanted.delete(name);
      throw error;
    }
  }

  async unregister(instance) {
    const key = keyOf(instance);
    this._wanted.delete(nameOf(key));
    await this._submit('Unregister', {deregistrations: [{key}]});
  }

  async* follow(service, {namespace = ''} = {}) {
    let known = new Map();
    const put = (map, instances) => instances.forEach((one) => map.set(one.key.instance_id, one));
    const list = (stale) => ({instances: [...known.keys()].sort().map((id) => toInstance(known.get(id))), stale});
    while (!this._closed) {
      const stream = this._open('Subscribe', {selector: {namespace, service}});
      try {
        let parts = new Map();
        for await (const message of messagesOf(stream)) {
          if (message.event === 'snapshot') {
            put(parts, message.snapshot.instances);
            if (message.snapshot.more) continue;
            [known, parts] = [parts, new Map()];
          } else if (message.event === 'delta') {
            message.delta.removals.forEach((key) => known.delete(key.instance_id));
            put(known, message.delta.upserts);
          }
          yield list(message.stale);
        }
      } finally {
        this._streams.delete(stream);
        stream.cancel();
      }
      if (this._closed) return;
      const {failed} = stream;
      if (failed && !AWAY.has(failed.code)) throw new Refused(failed.code, failed.details);
      if (known.size) yield list(true);
      await nap(RETRY_MS);
    }
  }

  async close() {
    this._closed = true;
    const session = this._session;
    if (session) await this._call('CloseSession', {session_id: session}).catch(() => {});
    for (const stream of this._streams) stream.cancel();
    await this._keeper;
    this._client.close();
  }

  _open(method, request) {
    const stream = request ? this._client[method](request) : this._client[method]();
    this._streams.add(stream);
    return stream;
  }

  _call(method, request) {
    return new Promise((resolve, reject) => {
      this._client[method](request, {deadline: Date.now() + CALL_MS},
          (error, response) => error ? reject(error) : resolve(response));
    });
  }

  // In the order of calls.
  _send(method, request) {
    const sent = this._sending.then(() => this._call(method, {...request, session_id: this._session}));
    this._sending = sent.catch(() => {});
    return sent;
  }

  // Until the sidecar has answered.
  async _submit(method, request) {
    while (true) {
      if (this._closed) throw new Refused(grpc.status.CANCELLED, 'the agent is closed');
      if (!this._session) {
        await nap(RETRY_MS / 10);
        continue;
      }
      try {
        const {results} = await this._send(method, request);
        const refused = results.find((result) => result.status && result.status.code);
        if (refused) throw new Refused(refused.status.code, refused.status.message);
        return;
      } catch (error) {
        if (error instanceof Refused) throw error;
        if (!AWAY.has(error.code)) throw new Refused(error.code, error.details);
        await nap(RETRY_MS);
      }
    }
  }

  // Keeps a session open, in which everything wanted is registered.
  async _keep() {
    while (!this._closed) {
      await this._oneSession().catch(() => {});
      this._session = null;
      if (!this._closed) await nap(RETRY_MS);
    }
  }

  async _oneSession() {
    const opened = await this._call('OpenSession', {
      incarnation: this._incarnation, client_name: this._name, ends_with_stream: true,
      ttl: {seconds: Math.floor(this._ttl), nanos: Math.round(this._ttl % 1 * 1e9)}});
    const stream = this._open('KeepAlive');
    const renew = () => stream.write({session_id: opened.session_id});
    const answers = messagesOf(stream);
    const timer = setInterval(renew, (Number(opened.ttl.seconds) * 1e3 + opened.ttl.nanos / 1e6) / 3);
    try {
      renew();
      const wanted = [...this._wanted.values()];
      for (let i = 0; i < wanted.length; i += BATCH) {
        await this._call('Register', {session_id: opened.session_id,
          registrations: wanted.slice(i, i + BATCH).map((instance) => ({instance}))});
      }
      this._session = opened.session_id;
      for await (const answer of answers) {
        if (answer.status && answer.status.code) return;  // the session is unknown: a new one
      }
    } finally {
      clearInterval(timer);
      this._streams.delete(stream);
      stream.cancel();
    }
  }
}

module.exports = {Agent, Refused};
