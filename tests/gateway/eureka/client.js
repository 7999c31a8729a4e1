// The npm package `eureka-js-client`, told by lines on stdin what to do; it says on stdout what it sees.
//
//   client.js HOST:PORT ID
'use strict';
const readline = require('readline');
const {Eureka} = require('eureka-js-client');

const [host, port] = process.argv[2].split(':');
const id = process.argv[3];
const say = (line) => process.stdout.write(line + '\n');
const quiet = () => {};

const client = new Eureka({
  logger: {debug: quiet, info: quiet, warn: (text) => say('warning ' + text), error: quiet},
  instance: {
    app: 'orders', instanceId: id, hostName: 'host-' + id, ipAddr: '10.0.0.7', vipAddress: 'orders',
    port: {'$': 8080, '@enabled': 'true'}, statusPageUrl: 'http://host-' + id + ':8080/info',
    leaseInfo: {renewalIntervalInSecs: 1, durationInSecs: 30},
    dataCenterInfo: {'@class': 'com.netflix.appinfo.InstanceInfo$DefaultDataCenterInfo', name: 'MyOwn'},
    metadata: {zone: 'eu-1', weight: '7', version: '2'},
  },
  eureka: {
    host, port, servicePath: '/eureka/apps/', heartbeatInterval: 200, registryFetchInterval: 200,
    maxRetries: 0, requestRetryDelay: 50,
  },
  shouldUseDelta: process.argv[4] === 'delta',
});
for (const event of ['registered', 'heartbeat', 'deregistered']) client.on(event, () => say(event));
let seen = '';
setInterval(() => {
  const ids = (client.cache.app.ORDERS || []).map((x) => x.instanceId).sort().join();
  if (ids !== seen) say('sees [' + ids + ']');
  seen = ids;
}, 50);

const calls = {
  start: (done) => client.start(done),
  // With no heartbeat under way: one that comes after the end is answered by registering again.
  stop: (done) => client.once('heartbeat', () => client.stop(done)),
  metadata: (done) => done(null, JSON.stringify(client.getInstancesByAppId('ORDERS')[0].metadata)),
};
readline.createInterface({input: process.stdin}).on('line', (line) => {
  calls[line]((error, result) => say((error ? 'failed ' : 'done ') + line + ' ' + (error ? error.message : result)));
});
