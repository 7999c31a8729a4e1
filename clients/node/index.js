// Failback for Node: see README.md and index.d.ts.
'use strict';

const {randomUUID} = require('crypto');
const {setMaxListeners} = require('events');
const path = require('path');
const {setTimeout: sleep} = require('timers/promises');
const grpc = require('@grpc/grpc-js');
const loader = require('@grpc/proto-loader');

const DEFAULT_TARGET = 'unix:/run/failback/agent.sock';
const CALL_MS = 5000;
const RETRY_MS = 500;
const BATCH = 200;
// The sidecar comes back within moments: a channel must not wait for minutes.
const CHANNEL_OPTIONS = {'grpc.initial_reconnect_backoff_ms': 100, 'grpc.max_reconnect_backoff_ms': 1000};
// Codes of a sidecar that is unavailable, or does not know the session: the call is made again in the next one.
const AWAY = new Set(['UNAVAILABLE', 'DEADLINE_EXCEEDED', 'CANCELLED', 'UNKNOWN', 'INTERNAL', 'ABORTED', 'NOT_FOUND',
  'FAILED_PRECONDITION'].map((name) => grpc.status[name]));
// A refusal with this among its details asks for patience.
const RETRY_INFO = 'google.rpc.RetryInfo';

const PROTO = path.join(__dirname, 'proto');
const definition = loader.loadSync(
    path.join(PROTO, 'failback/registry/v1/registry.proto'),
    {includeDirs: [PROTO], keepCase: true, enums: String, longs: String, defaults: true, oneofs: true});
const {RegistryService} = grpc.loadPackageDefinition(definition).failback.registry.v1;

class Refused extends Error {
  constructor(code, message) {
    super(message);
    this.name = 'Refused';
    this.code = code;
  }
}

// Null for a failure of a call that passes.
function refusalOf(error) {
  if (AWAY.has(error.code) || error.code === 'ERR_STREAM_PREMATURE_CLOSE') return null;
  if (typeof error.code !== 'number') return error;  // none of gRPC's
  const details = error.metadata ? error.metadata.get('grpc-status-details-bin') : [];
  if (error.code === grpc.status.RESOURCE_EXHAUSTED && details.some((one) => one.includes(RETRY_INFO))) return null;
  return new Refused(error.code, error.details);
}

// Of an item of a call: whether it is to be sent again.
const passes = (status) => status.code === grpc.status.UNAVAILABLE ||
    status.details.some((detail) => detail.type_url.includes(RETRY_INFO));

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

class Agent {
  constructor({target, name = '', ttl = 10} = {}) {
    this._target = target || process.env.FAILBACK_TARGET || DEFAULT_TARGET;
    this._client = new RegistryService(this._target, grpc.credentials.createInsecure(), CHANNEL_OPTIONS);
    this._name = name;
    this._ttl = ttl;
    this._incarnation = randomUUID();
    this._wanted = new Map();
    this._session = null;
    this._refused = null;  // why the sidecar opens no session
    this._away = false;
    this._end = new AbortController();
    setMaxListeners(0, this._end.signal);
    this._streams = new Set();
    // Intents count in the order in which they arrive: one call at a time.
    this._sending = Promise.resolve();
    this._keeper = this._keep();
  }

  async register(instance, {signal} = {}) {
    this._check();
    const message = toMessage(instance);
    const name = nameOf(message.key);
    const before = this._wanted.get(name);
    this._wanted.set(name, message);
    try {
      await this._submit('Register', {registrations: [{instance: message}]}, signal);
    } catch (error) {
      if (error instanceof Refused) {
        if (before) this._wanted.set(name, before); else this._wanted.delete(name);
      }
      throw error;
    }
  }

  async unregister(instance, {signal} = {}) {
    this._check();
    const key = keyOf(instance);
    this._wanted.delete(nameOf(key));
    await this._submit('Unregister', {deregistrations: [{key}]}, signal);
  }

  async* follow(service, {namespace = '', signal} = {}) {
    this._check();
    let known = new Map();
    const put = (map, instances) => instances.forEach((one) => map.set(one.key.instance_id, one));
    const list = (stale) => ({instances: [...known.keys()].sort().map((id) => toInstance(known.get(id))), stale});
    const ended = () => this._closed || (signal && signal.aborted);
    while (!ended()) {
      const stream = this._open('Subscribe', {selector: {namespace, service}});
      const cancel = () => stream.cancel();
      if (signal) signal.addEventListener('abort', cancel);
      try {
        let parts = new Map();
        for await (const message of stream) {
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
      } catch (error) {
        const refusal = refusalOf(error);
        if (refusal) throw refusal;
      } finally {
        if (signal) signal.removeEventListener('abort', cancel);
        this._shut(stream);
      }
      if (ended()) return;
      if (known.size) yield list(true);
      await this._pause(RETRY_MS, signal);
    }
  }

  async close() {
    if (this._closed) return this._keeper;
    const session = this._session;
    this._end.abort();
    if (session) await this._call('CloseSession', {session_id: session}).catch(() => {});
    for (const stream of this._streams) stream.cancel();
    await this._keeper;
    this._client.close();
  }

  get _closed() { return this._end.signal.aborted; }

  _check() {
    if (this._closed) throw new Error('the agent is closed');
  }

  // Until then, or until one of the signals.
  async _pause(ms, signal) {
    const end = new AbortController();
    const abort = () => end.abort();
    const signals = [this._end.signal, signal].filter(Boolean);
    if (signals.some((one) => one.aborted)) return;
    signals.forEach((one) => one.addEventListener('abort', abort));
    await sleep(ms, undefined, {signal: end.signal}).catch(() => {});
    signals.forEach((one) => one.removeEventListener('abort', abort));
  }

  _open(method, request) {
    const stream = request ? this._client[method](request) : this._client[method]();
    // Errors reach who reads it; one that comes later is the cancellation.
    stream.on('error', () => {});
    this._streams.add(stream);
    return stream;
  }

  _shut(stream) {
    this._streams.delete(stream);
    stream.cancel();
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
  async _submit(method, request, signal) {
    while (true) {
      this._check();
      if (signal) signal.throwIfAborted();
      if (!this._session) {
        if (this._refused) throw this._refused;
        await this._pause(RETRY_MS / 10, signal);
        continue;
      }
      try {
        const {results} = await this._send(method, request);
        const failed = results.find((result) => result.status && result.status.code);
        if (!failed) return;
        if (!passes(failed.status)) throw new Refused(failed.status.code, failed.status.message);
      } catch (error) {
        const refusal = error instanceof Refused ? error : refusalOf(error);
        if (refusal) throw refusal;
      }
      await this._pause(RETRY_MS, signal);
    }
  }

  // Keeps a session open, in which everything wanted is registered.
  async _keep() {
    while (!this._closed) {
      await this._oneSession().catch((error) => this._noteFailure(error));
      this._session = null;
      await this._pause(RETRY_MS);
    }
  }

  _noteFailure(error) {
    this._refused = refusalOf(error);
    if (this._away || this._closed) return;
    this._away = true;
    process.emitWarning(`the sidecar at ${this._target} has no session for this process, which tries again until it ` +
        `has: ${error.message}`, 'FailbackWarning');
  }

  async _oneSession() {
    const opened = await this._call('OpenSession', {
      incarnation: this._incarnation, client_name: this._name, ends_with_stream: true,
      ttl: {seconds: Math.floor(this._ttl), nanos: Math.round(this._ttl % 1 * 1e9)}});
    if (this._closed) {
      await this._call('CloseSession', {session_id: opened.session_id});
      return;
    }
    const stream = this._open('KeepAlive');
    const renew = () => stream.write({session_id: opened.session_id});
    const timer = setInterval(renew, (Number(opened.ttl.seconds) * 1e3 + opened.ttl.nanos / 1e6) / 3);
    try {
      renew();
      await this._registerAgain(opened.session_id);
      if (this._closed) return;
      this._session = opened.session_id;
      this._refused = null;
      this._away = false;
      for await (const answer of stream) {
        if (answer.status && answer.status.code) return;  // the session is unknown: a new one
      }
    } finally {
      clearInterval(timer);
      this._shut(stream);
    }
  }

  async _registerAgain(session) {
    const wanted = [...this._wanted.values()];
    for (let i = 0; i < wanted.length && !this._closed;) {
      const batch = wanted.slice(i, i + BATCH);
      const {results} = await this._call('Register',
          {session_id: session, registrations: batch.map((instance) => ({instance}))});
      const failed = results.map(({status}) => status && status.code ? status : null);
      if (failed.some((status) => status && passes(status))) {
        await this._pause(RETRY_MS);
        continue;
      }
      failed.forEach((status, at) => {
        if (!status) return;
        const {service, instance_id: id} = batch[at].key;
        process.emitWarning(`the sidecar does not take ${service}/${id} again: ${status.message}`, 'FailbackWarning');
      });
      i += BATCH;
    }
  }
}

module.exports = {Agent, Refused};
