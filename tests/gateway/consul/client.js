// The npm package `consul`, told by lines on stdin what to do; it says on stdout what has come of it.
//
//   client.js AGENT READER        addresses: where it registers, and where it follows `orders`
'use strict';
const readline = require('readline');
const Consul = require('consul');

const at = (address) => {
  const [host, port] = address.split(':');
  return new Consul({host, port});
};
const agent = at(process.argv[2]);
const reader = at(process.argv[3]);
const say = (line) => process.stdout.write(line + '\n');

const watch = reader.watch({
  method: reader.health.service,
  options: {service: 'orders', passing: true, wait: '20s'},
  backoffFactor: 10,
  backoffMax: 500,
});
watch.on('change', (entries) => {
  say('passing ' + JSON.stringify(entries.map((entry) => entry.Service.ID)));
});
watch.on('error', (error) => say('error ' + error.message.replace(/\s+/g, ' ')));

const calls = {
  register: (id) => agent.agent.service.register({
    name: 'orders', id, address: '10.0.0.7', port: 8080, tags: ['a,b', 'npm'], meta: {version: '2'},
    check: {ttl: '20s', notes: 'by npm'},
  }),
  pass: (id) => agent.agent.check.pass({id: 'service:' + id, note: 'fine'}),
  warn: (id) => agent.agent.check.warn('service:' + id),
  fail: (id) => agent.agent.check.fail('service:' + id),
  maintenance: (id, enable) => agent.agent.service.maintenance({id, enable: enable === 'true'}),
  deregister: (id) => agent.agent.service.deregister(id),
  services: async () => Object.keys(await agent.agent.service.list()).join(),
  checks: async () => Object.keys(await agent.agent.check.list()).join(),
  self: async () => (await agent.agent.self()).Config.Datacenter,
  members: async () => (await agent.agent.members()).length,
  leader: async () => await reader.status.leader(),
  peers: async () => (await reader.status.peers()).length,
  datacenters: async () => (await reader.catalog.datacenters()).join(),
  nodes: async () => (await reader.catalog.node.list()).map((node) => node.Node).join(),
  node: async () => Object.keys((await reader.catalog.node.services('10.0.0.7')).Services).join(),
  catalog: async () => JSON.stringify(await reader.catalog.service.list()),
  instances: async () => JSON.stringify((await reader.catalog.service.nodes('orders')).map((x) => x.ServiceTags)),
  tagged: async () => (await reader.health.service({service: 'orders', tag: 'npm'})).length,
  state: async () => (await reader.health.state('any')).length,
  kv: () => agent.kv.get('a/b'),
  filter: () => reader.health.service({service: 'orders', filter: 'Service.ID == a'}),
};

readline.createInterface({input: process.stdin}).on('line', async (line) => {
  const [call, ...args] = line.split(' ');
  try {
    const result = await calls[call](...args);
    say('done ' + line + (result === undefined ? '' : ' ' + result));
  } catch (error) {
    say('refused ' + line + ' ' + (error.statusCode || '') + ' ' + error.message.replace(/\s+/g, ' '));
  }
});
