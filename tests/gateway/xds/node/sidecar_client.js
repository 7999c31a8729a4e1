// A service in another language that keeps itself registered through the sidecar's Unix socket, with
// nothing but @grpc/grpc-js and the .proto files.
//
//   node sidecar_client.js unix:/run/failback/agent.sock PROTO_FOLDER
//
// Prints a line for each thing that has come true; lines on stdin tell it what to do next:
// `register ID`, `unregister ID`, `pending`, `close`.
'use strict';

const path = require('path');
const readline = require('readline');
const grpc = require('@grpc/grpc-js');
const loader = require('@grpc/proto-loader');

const [target, protos] = process.argv.slice(2);
const definition = loader.loadSync(
    [path.join(protos, 'failback/registry/v1/registry.proto'),
     path.join(protos, 'failback/agent/v1/agent.proto')],
    {includeDirs: [protos], keepCase: true, enums: String, longs: String, defaults: true});
const failback = grpc.loadPackageDefinition(definition).failback;
const credentials = grpc.credentials.createInsecure();
const registry = new failback.registry.v1.RegistryService(target, credentials);
const agent = new failback.agent.v1.AgentService(target, credentials);

const deadline = () => ({deadline: Date.now() + 20000});
const call = (client, method, request) => new Promise((resolve, reject) => {
  client[method](request, deadline(), (error, response) => error ? reject(error) : resolve(response));
});
const say = (...words) => console.log(words.join(' '));
const key = (id) => ({service: 'carts', instance_id: id});

// What an ends_with_stream session promises: this process's death is told by the broken stream.
async function openSession() {
  const session = await call(registry, 'OpenSession', {
    incarnation: `node-${process.pid}`, client_name: 'carts', ends_with_stream: true,
    ttl: {seconds: 10}});
  const stream = registry.KeepAlive();
  stream.on('data', (answer) => {
    if (answer.status && answer.status.code) say('session lost', answer.status.message);
  });
  stream.on('error', (error) => say('stream ended', error.code));
  const renew = () => stream.write({session_id: session.session_id});
  renew();
  setInterval(renew, Number(session.ttl.seconds) * 1000 / 3).unref();
  say('session open');
  return session.session_id;
}

function follow() {
  const instances = new Map();
  const stream = registry.Subscribe({selector: {service: 'carts'}});
  stream.on('data', (event) => {
    if (event.snapshot) {
      instances.clear();
      for (const instance of event.snapshot.instances) {
        instances.set(instance.key.instance_id, instance);
      }
    }
    if (event.delta) {
      for (const gone of event.delta.removals) instances.delete(gone.instance_id);
      for (const instance of event.delta.upserts) {
        instances.set(instance.key.instance_id, instance);
      }
    }
    say('sees', `[${[...instances.keys()].sort().join(' ')}]`, event.stale ? 'stale' : 'current');
  });
  stream.on('error', (error) => say('subscription ended', error.code));
}

async function obey(sessionId, [command, id]) {
  if (command === 'register') {
    const answer = await call(registry, 'Register', {
      session_id: sessionId,
      registrations: [{instance: {key: key(id), address: '127.0.0.1', port: 8080}}]});
    say('registered', id, answer.results[0].state);
  } else if (command === 'unregister') {
    const answer = await call(registry, 'Unregister', {
      session_id: sessionId, deregistrations: [{key: key(id)}]});
    say('unregistered', id, answer.results[0].state);
  } else if (command === 'pending') {
    const answer = await call(agent, 'ListPending', {});
    say('pending', `[${answer.operations.map((row) => row.id).join(', ')}]`);
  } else if (command === 'close') {
    await call(registry, 'CloseSession', {session_id: sessionId});
    say('closed');
    process.exit(0);
  }
}

openSession().then((sessionId) => {
  follow();
  readline.createInterface({input: process.stdin}).on('line', (line) => {
    obey(sessionId, line.split(' ')).catch((error) => say('failed', error.code, error.details));
  });
}).catch((error) => {
  console.error(error.message);
  process.exit(1);
});
