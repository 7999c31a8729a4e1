// Failback for Node: see README.md and index.d.ts.
'use strict';

const {randomUUID} = require('crypto');
const {setMaxListeners} = require('events');
const path = require('path');
const {setTimeout: sleep} = require('timers/promises');
const {inspect} = require('util');
const grpc = require('@grpc/grpc-js');
const loader = require('@grpc/proto-loader');
const {Intents} = require('./intents');

const DEFAULT_TARGET = 'unix:/run/failback/agent.sock';
const CALL_MS = 5000;
const CLOSE_MS = 1000;  // for the last call of a session
const RETRY_MS = 500;
const UNANSWERED = 3;  // renewals in a TTL; the sidecar hangs when none of them is answered
const BATCH = 200;
const MAX_SECONDS = 315576000000;  // of google.protobuf.Duration
const SHOWN = {depth: 0, maxArrayLength: 3, maxStringLength: 100};  // of a wrong argument
// The sidecar comes back within moments: a channel must not wait for minutes.
const CHANNEL_OPTIONS = {'grpc.initial_reconnect_backoff_ms': 100, 'grpc.max_reconnect_backoff_ms': 1000};
// Codes of a sidecar that is unavailable, or does not know the session: the call is made again in the next one.
const AWAY = new Set(['UNAVAILABLE', 'DEADLINE_EXCEEDED', 'CANCELLED', 'UNKNOWN', 'INTERNAL', 'ABORTED', 'NOT_FOUND',
  'FAILED_PRECONDITION'].map((name) => grpc.status[name]));
// What a refusal's details say: it asks for patience; the sidecar ends, and takes away what it has registered.
const RETRY_INFO = 'google.rpc.RetryInfo';
const DRAINING = 'DRAINING';
// An item's place in its call, of which the caller knows nothing.
const PLACE = /^(de)?registrations\[\d+\]\.(instance\.)?/;

const FIELDS = ['service', 'id', 'address', 'port', 'namespace', 'weight', 'zone', 'metadata'];
// What gRPC dials: a path needs its scheme.
const TARGET = /^((unix|unix-abstract|dns|ipv4|ipv6|vsock):.+|(?!unix:)[^/]+)$/;

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

const says = (error, word) => error.metadata !== undefined &&
    error.metadata.get('grpc-status-details-bin').some((details) => details.includes(word));

// Null for a failure of a call that passes.
function refusalOf(error) {
  if (AWAY.has(error.code) || error.code === 'ERR_STREAM_PREMATURE_CLOSE') return null;
  if (typeof error.code !== 'number') return error;  // none of gRPC's
  if (error.code === grpc.status.RESOURCE_EXHAUSTED && says(error, RETRY_INFO)) return null;
  return new Refused(error.code, error.details);
}

// Of an item of a call: whether it is to be sent again.
const passes = (status) => status.code === grpc.status.UNAVAILABLE ||
    status.details.some((detail) => detail.type_url.includes(RETRY_INFO));

// A wrong argument is named to the caller, before it is wanted: a TypeError for its type, a RangeError for its value.
function check(allowed, argument, value, means, Kind = TypeError) {
  if (!allowed) {
    throw new Kind(`${argument}: ${inspect(value, SHOWN)} is not ${means}`);
  }
}

const isObject = (value) => value !== null && typeof value === 'object' && !(Symbol.iterator in value);

function checkText(argument, value) {
  check(typeof value === 'string', argument, value, 'a string');
  check(!/\p{Surrogate}/u.test(value), argument, value, 'a string of Unicode characters');
}

function checkService(service) {
  checkText('service', service);
  check(service !== '', 'service', service, 'the name of a service', RangeError);
}

function checkNumber(argument, value, least) {
  const means = `an integer from ${least} to 65535`;
  check(Number.isInteger(value), argument, value, means);
  check(value >= least && value <= 65535, argument, value, means, RangeError);
}

function checkNames(argument, value, names) {
  check(isObject(value), argument, value, `an object of ${names.join(', ')}`);
  Object.keys(value).forEach((name) => check(names.includes(name), argument, name, `one of ${names.join(', ')}`));
}

function checkOptions(options, ...names) {
  checkNames('options', options, names);
  const {signal} = options;
  check(signal === undefined || (isObject(signal) && typeof signal.aborted === 'boolean' &&
      typeof signal.addEventListener === 'function'), 'signal', signal, 'an AbortSignal');
}

function keyOf(instance) {
  checkNames('instance', instance, FIELDS);
  const {service, id, namespace = ''} = instance;
  checkService(service);
  Object.entries({id, namespace}).forEach(([argument, value]) => checkText(argument, value));
  return {namespace: namespace || 'default', service, instance_id: id};
}
const nameOf = (key) => JSON.stringify([key.namespace, key.service, key.instance_id]);

function toMessage(instance) {
  const key = keyOf(instance);
  const {address, port, weight, zone = '', metadata = {}} = instance;
  Object.entries({address, zone}).forEach(([argument, value]) => checkText(argument, value));
  checkNumber('port', port, 1);
  if (weight !== undefined) checkNumber('weight', weight, 0);
  check(isObject(metadata), 'metadata', metadata, 'an object of strings');
  Object.entries(metadata).forEach(([name, value]) => {
    checkText('metadata', name);
    checkText(`metadata[${inspect(name, SHOWN)}]`, value);
  });
  return {key, address, port, zone, metadata: {...metadata}, ...(weight === undefined ? {} : {weight})};
}

function toInstance(message) {
  return {
    service: message.key.service, id: message.key.instance_id, address: message.address, port: message.port,
    namespace: message.key.namespace,
    healthy: ['HEALTH_STATUS_UNSPECIFIED', 'HEALTH_STATUS_HEALTHY'].includes(message.status),
    weight: message._weight === undefined ? 100 : message.weight, zone: message.zone, metadata: message.metadata};
}

class Agent {
  constructor(options = {}) {
    checkOptions(options, 'target', 'name', 'ttl');
    const {target, name = '', ttl = 10} = options;
    this._target = target === undefined ? process.env.FAILBACK_TARGET || DEFAULT_TARGET : target;
    checkText('target', this._target);
    check(TARGET.test(this._target), 'target', this._target, 'unix:PATH or HOST:PORT', RangeError);
    checkText('name', name);
    check(typeof ttl === 'number', 'ttl', ttl, 'a number of seconds');
    check(Math.abs(ttl) <= MAX_SECONDS, 'ttl', ttl, `from -${MAX_SECONDS} to ${MAX_SECONDS} seconds`, RangeError);
    this._client = new RegistryService(this._target, grpc.credentials.createInsecure(), CHANNEL_OPTIONS);
    this._opening = {
      incarnation: randomUUID(), client_name: name, ends_with_stream: true,
      ttl: {seconds: Math.trunc(ttl), nanos: Math.trunc(ttl % 1 * 1e9)}};
    this._intents = new Intents();
    this._session = null;
    this._limit = BATCH;
    this._sending = false;
    this._retry = null;
    this._refused = null;  // why the sidecar opens no session
    this._away = false;
    this._end = new AbortController();
    setMaxListeners(0, this._end.signal);
    this._calls = new Set();
    this._followed = new Set();  // streams of follow()
    this._keeper = this._keep();
  }

  async register(instance, options = {}) {
    this._check();
    checkOptions(options, 'signal');
    const message = toMessage(instance);
    await this._submit(nameOf(message.key), message, false, options.signal);
  }

  async unregister(instance, options = {}) {
    this._check();
    checkOptions(options, 'signal');
    const key = keyOf(instance);
    await this._submit(nameOf(key), {key}, true, options.signal);
  }

  follow(service, options = {}) {
    this._check();
    checkOptions(options, 'namespace', 'signal');
    const {namespace = '', signal} = options;
    checkService(service);
    checkText('namespace', namespace);
    return this._follow(service, namespace, signal);
  }

  async* _follow(service, namespace, signal) {
    let known = new Map();
    let stale = false;  // of the last list
    let told = false;
    const put = (map, instances) => instances.forEach((one) => map.set(one.key.instance_id, one));
    const list = () => ({instances: [...known.keys()].sort().map((id) => toInstance(known.get(id))), stale});
    const ended = () => this._closed || (signal && signal.aborted);
    while (!ended()) {
      const stream = this._open('Subscribe', {selector: {namespace, service}});
      this._followed.add(stream);
      const silence = told ? null : setTimeout(() => this._warn(
          `the sidecar at ${this._target} has no list of ${service} yet: its registry is unavailable, or does not let ` +
          'it read that service; `failbackctl pending` says which'), CALL_MS);
      const cancel = () => stream.cancel();
      if (signal) signal.addEventListener('abort', cancel);
      try {
        let parts = new Map();
        for await (const message of stream) {
          clearTimeout(silence);
          if (message.event === 'snapshot') {
            put(parts, message.snapshot.instances);
            if (message.snapshot.more) continue;
            [known, parts] = [parts, new Map()];
          } else if (message.event === 'delta') {
            message.delta.removals.forEach((key) => known.delete(key.instance_id));
            put(known, message.delta.upserts);
          }
          [stale, told] = [message.stale, true];
          yield list();
        }
      } catch (error) {
        const refusal = refusalOf(error);
        if (refusal) throw refusal;
      } finally {
        clearTimeout(silence);
        if (signal) signal.removeEventListener('abort', cancel);
        this._followed.delete(stream);
        this._shut(stream);
      }
      if (ended()) return;
      if (!stale) {
        stale = told = true;
        yield list();
      }
      await this._pause(RETRY_MS, signal);
    }
  }

  close() {
    this._closing = this._closing || this._close();
    return this._closing;
  }

  async _close() {
    const session = this._session;
    this._end.abort();
    clearTimeout(this._retry);
    this._intents.refusedAll().forEach(({reject}) => reject(new Error('the agent is closed')));
    if (session) await this._call('CloseSession', {session_id: session}, CLOSE_MS).catch(() => {});
    this._calls.forEach((call) => call.cancel());
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
    this._calls.add(stream);
    return stream;
  }

  _shut(stream) {
    this._calls.delete(stream);
    stream.cancel();
  }

  _call(method, request, ms) {
    return new Promise((resolve, reject) => {
      const call = this._client[method](request, ms ? {deadline: Date.now() + ms} : {}, (error, response) => {
        this._calls.delete(call);
        if (error) reject(error); else resolve(response);
      });
      this._calls.add(call);
    });
  }

  // The outcome of the intent, or the signal's reason: the intent is in force then, too.
  _submit(key, message, removal, signal) {
    if (this._refused) throw this._refused;
    return new Promise((resolve, reject) => {
      const leave = () => {
        this._intents.leave(key, waiter);
        waiter.reject(signal.reason);
      };
      const end = (settle) => (value) => {
        if (signal) signal.removeEventListener('abort', leave);
        settle(value);
      };
      const waiter = {resolve: end(resolve), reject: end(reject)};
      this._intents.put(key, message, removal, waiter);
      if (signal) signal.addEventListener('abort', leave);
      if (signal && signal.aborted) leave();
      this._send();
    });
  }

  // The one sender: one call at a time, while there are a session and something to send.
  async _send() {
    if (this._sending) return;
    this._sending = true;
    let batch;
    while (this._session && !this._closed && (batch = this._intents.batch(this._limit)).length) {
      const items = batch[0].removal ? {deregistrations: batch.map(({message}) => message)} :
          {registrations: batch.map(({message}) => ({instance: message}))};
      // Without a deadline: a call that was given up may still be carried out, after a newer one.
      await this._call(batch[0].removal ? 'Unregister' : 'Register', {session_id: this._session, ...items})
          .then(({results}) => batch.forEach((intent, at) => this._settle(intent, results[at].status)))
          .catch((error) => this._settleCall(batch, error));
    }
    this._sending = false;
  }

  _settle(intent, status) {
    if (!status || !status.code) {
      this._intents.accepted(intent).forEach(({resolve}) => resolve());
    } else if (passes(status)) {
      this._sendLater(intent);
    } else {
      this._refuse(intent, new Refused(status.code, status.message.replace(PLACE, '')));
    }
  }

  _settleCall(batch, error) {
    const refusal = refusalOf(error);
    const draining = says(error, DRAINING);
    if (draining && batch[0].removal) {
      // The sidecar does so by itself.
      batch.forEach((intent) => this._intents.accepted(intent).forEach(({resolve}) => resolve()));
    } else if (!refusal) {
      if (draining) this._noteAway('takes nothing new, and is asked again until it does', error.details);
      batch.forEach((intent) => this._sendLater(intent));
    } else if (batch.length > 1) {
      this._intents.apart(batch);
    } else {
      this._refuse(batch[0], refusal);
    }
  }

  _refuse(intent, refusal) {
    const waiters = this._intents.refused(intent);
    waiters.forEach(({reject}) => reject(refusal));
    const {service, instance_id: id} = intent.message.key;
    if (!waiters.length) this._warn(`the sidecar does not take ${service}/${id}: ${refusal.message}`);
  }

  _sendLater(intent) {
    this._intents.later(intent);
    if (this._retry || this._closed) return;
    this._retry = setTimeout(() => {
      this._retry = null;
      this._intents.retry();
      this._send();
    }, RETRY_MS);
  }

  _warn(text) {
    process.emitWarning(text, 'FailbackWarning');
  }

  // Keeps a session open, in which everything wanted is registered.
  async _keep() {
    while (!this._closed) {
      await this._oneSession().catch((error) => this._noteFailure(error));
      await this._pause(RETRY_MS);
    }
  }

  _noteFailure(error) {
    if (this._closed) return;
    this._refused = refusalOf(error);
    if (this._refused) this._intents.refusedAll().forEach(({reject}) => reject(this._refused));
    this._noteAway('has no session for this process, which tries again until it has', error.message);
  }

  _noteAway(what, why) {
    if (this._away) return;
    this._away = true;
    this._warn(`the sidecar at ${this._target} ${what}: ${why}`);
  }

  async _oneSession() {
    const opened = await this._call('OpenSession', this._opening, CALL_MS);
    const stream = this._open('KeepAlive');
    let unanswered = 0;  // this process may have slept, so the clock does not tell
    const renew = () => {
      if (unanswered++ < UNANSWERED) return stream.write({session_id: opened.session_id});
      // What it has been asked may still be done, so no call of the sender is given up.
      this._noteAway('does not answer', `${UNANSWERED} renewals of the session wait`);
      return [stream, ...this._followed].forEach((one) => one.cancel());
    };
    const timer = setInterval(renew, (Number(opened.ttl.seconds) * 1e3 + opened.ttl.nanos / 1e6) / UNANSWERED);
    try {
      renew();
      this._limit = Math.min(BATCH, (opened.limits && opened.limits.max_batch) || BATCH);
      this._session = opened.session_id;
      this._refused = null;
      this._away = false;
      this._intents.sessionOpened();
      this._send();
      for await (const answer of stream) {
        unanswered = 0;
        if (answer.status && answer.status.code) return;  // the session is unknown: a new one
      }
    } finally {
      this._session = null;
      clearInterval(timer);
      this._shut(stream);
    }
  }
}

module.exports = {Agent, Refused};
