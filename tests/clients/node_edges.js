// What clients/node does at the edges, a line for each: node node_edges.js TARGET.
'use strict';

const {Agent, Refused} = require('failback');

const [target] = process.argv.slice(2);
const none = `${target}.none`;
const one = {service: 'carts', id: 'carts-1', address: '10.0.0.7', port: 8080};
let warnings = 0;
process.removeAllListeners('warning');
process.on('warning', (warning) => { if (warning.name === 'FailbackWarning') warnings++; });

// What `act` fails with.
async function failure(options, act) {
  const agent = new Agent(options);
  try {
    await act(agent);
    return 'nothing';
  } catch (error) {
    return error instanceof Refused ? `Refused ${error.code}: ${error.message}` : `${error.name}: ${error.message}`;
  } finally {
    await agent.close();
  }
}

async function follow(agent, options, onList = () => {}) {
  for await (const list of agent.follow('carts', options)) if (onList(list)) break;
}

function thrown(act) {
  try {
    act();
    return 'nothing';
  } catch (error) {
    return `${error.name}: ${error.message}`;
  }
}

// Each is named to its caller, and the agent works on: what was wrong is not wanted.
async function wrongArguments() {
  const agent = new Agent({target});
  const failed = (call) => call.then(() => 'nothing', (error) => `${error.name}: ${error.message}`);
  for (const wrong of [
    {metadata: 'zone=a'}, {metadata: null}, {metadata: new Map([['zone', 'a']])}, {metadata: {zone: 1}},
    {metadata: {zone: '\ud800'}}, {metadata: {'\udc00': 'a'}}, {port: '8080'}, {port: 8080.5}, {port: 0}, {port: -1},
    {port: 65536}, {weight: -1}, {address: undefined}, {id: 7}, {service: ''}]) {
    console.log(await failed(agent.register({...one, ...wrong})));
  }
  console.log(await failed(agent.register()));
  console.log(await failed(agent.register({...one, wieght: 0})));
  console.log(await failed(agent.unregister({...one, namespcae: 'shop'})));
  for (const options of [{signal: new AbortController()}, {signal: 5}, {signal: null}, {singal: 1}, 5, null]) {
    console.log(await failed(agent.register(one, options)));
    if (options && options.signal) console.log(await failed(agent.unregister(one, options)));
  }
  console.log(thrown(() => agent.follow('carts', {namespace: 7})));
  console.log(thrown(() => agent.follow('carts', {signal: 5})));
  console.log(thrown(() => agent.follow('')));
  await agent.register({...one, id: 'last'});
  for await (const {instances} of agent.follow('carts')) {
    if (!instances.length) continue;
    console.log('registered:', instances.map(({id}) => id).join(', '));
    break;
  }
  await agent.register(one);
  await agent.close();
  console.log(thrown(() => agent.follow('carts')));
}

// A sidecar that is paused answers no call; `pause` and `resume` go to the test, which pauses it.
async function paused() {
  const agent = new Agent({target});
  await agent.register(one);
  console.log('pause');
  await new Promise((resolve) => process.stdin.once('data', resolve));
  const end = new AbortController();
  const calls = [1, 2, 3, 4].map((port) => agent.register({...one, port}, {signal: end.signal}));
  calls.push(agent.unregister(one, {signal: AbortSignal.abort(new Error('ended before'))}));
  end.abort(new Error('ended'));
  const late = new Promise((resolve) => setTimeout(resolve, 3000, 'late').unref());
  const outcomes = await Promise.all(calls.map((call) => Promise.race([call.catch((error) => error.message), late])));
  console.log('paused:', outcomes.join(', '));
  const started = Date.now();
  await agent.close();
  console.log('closed:', Date.now() - started < 4000 ? 'soon' : 'late');
  console.log('resume');
}

async function main() {
  await paused();
  console.log('closed at once:', await failure({target}, async (agent) => {
    await agent.close();
    await agent.register(one);
  }));
  const away = await failure({target: none}, (agent) => agent.register(one, {signal: AbortSignal.timeout(1500)}));
  console.log('sidecar away:', `${away.split(':')[0]}, ${warnings} warning`);
  console.log('session refused:', await failure({target, ttl: -1}, (agent) => agent.register(one)));
  console.log('too much:', await failure({target},
      (agent) => agent.register({...one, metadata: {x: 'y'.repeat(6e6)}})));
  for (const options of [{ttl: '10s'}, {ttl: null}, {ttl: NaN}, {name: 7}, {target: 7},
    {target: null}, {target: ''}, {target: '/run/failback/agent.sock'}, {target: 'grpc://127.0.0.1:7060'}, '127.0.0.1:7060', 5, [], null,
    {tartget: 'x'}, {signal: 5}]) {
    console.log(thrown(() => new Agent(options)));
  }
  await wrongArguments();
  const agent = new Agent({target});
  const end = new AbortController();
  await follow(agent, {signal: end.signal}, () => end.abort());
  console.log('follow ends with its signal');
  await follow(agent, {}, () => { setImmediate(() => agent.close()); });
  console.log('follow ends with the agent');
  const other = new Agent({target});
  await follow(other, {}, () => true);
  await other.close();
  console.log('follow ends with break');
  const alone = new Agent({target: none});
  process.once('warning', () => alone.close());  // it has tried
  await follow(alone, {});
  console.log('follow of a sidecar that is unavailable ends with the agent');
}

main().then(() => process.stdin.destroy());
