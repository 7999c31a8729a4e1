// A stock gRPC client in JavaScript; what it does is told at the top of ../client.cc.
'use strict';

const fs = require('fs');
const path = require('path');
const readline = require('readline');

if (!fs.existsSync(path.join(__dirname, 'node_modules', '@grpc', 'grpc-js-xds'))) {
  console.error(`no npm packages in ${__dirname}: \`./dev test\` installs them`);
  process.exit(1);
}
const grpc = require('@grpc/grpc-js');
require('@grpc/grpc-js-xds').register();

const METHOD = '/failback.examples.Orders/GetOrder';
const asIs = (bytes) => bytes;

class Client {
  constructor(target) {
    this.client = new grpc.Client(target, grpc.credentials.createInsecure());
  }

  // Who served, or the status code.
  call(deadlineMs) {
    return new Promise((resolve) => {
      const options = {deadline: Date.now() + deadlineMs};
      this.client.makeUnaryRequest(
          METHOD, asIs, asIs, Buffer.alloc(0), new grpc.Metadata(), options, (error, response) => {
            if (error) console.error(`error ${error.code}: ${error.details}`);
            resolve(error ? `error${error.code}` : response.subarray(2).toString());
          });
    });
  }
}

function count(counts, who) {
  counts.set(who, (counts.get(who) || 0) + 1);
}

function answer(counts) {
  const words = [...counts].sort().map(([who, calls]) => `${who}=${calls}`);
  console.log(['result', ...words].join(' '));
}

async function main() {
  const clients = new Map();
  let stop = false;
  let background;
  for await (const line of readline.createInterface({input: process.stdin})) {
    const [verb, target, calls, deadlineMs] = line.split(' ');
    if (verb === 'stop') {
      stop = true;
      answer(await background);
      continue;
    }
    if (!clients.has(target)) clients.set(target, new Client(target));
    const client = clients.get(target);
    if (verb === 'start') {
      stop = false;
      background = (async () => {
        const counts = new Map();
        while (!stop) {
          count(counts, await client.call(10000));
          await new Promise((resolve) => setTimeout(resolve, 2));
        }
        return counts;
      })();
      continue;
    }
    const counts = new Map();
    for (let i = 0; i < Number(calls); ++i) count(counts, await client.call(Number(deadlineMs)));
    answer(counts);
  }
  process.exit(0);
}

main();
