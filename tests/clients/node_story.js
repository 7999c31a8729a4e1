// A program that uses clients/node, as node_test.py tells it: a line on stdin is a call, lines on stdout say what
// has come true.
'use strict';

const readline = require('readline');
const {Agent, Refused} = require('failback');

const agent = new Agent({target: process.argv[2], name: 'carts'});
const say = (...words) => console.log(words.join(' '));

const COMMANDS = {
  register: async (id, port) => {
    await agent.register({service: 'carts', id, address: '10.0.0.7', port: Number(port), weight: 7, metadata: {k: 'v'}});
    say('registered', id, port);
  },
  unregister: async (id) => {
    await agent.unregister({service: 'carts', id});
    say('unregistered', id);
  },
  follow: async () => {
    for await (const {instances, stale} of agent.follow('carts')) {
      say('sees', `[${instances.map((one) => `${one.id}:${one.port}/${one.weight}/${one.metadata.k}`).join(' ')}]`,
          stale ? 'stale' : 'current');
    }
    say('follow ended');
  },
  close: async () => {
    await agent.close();
    say('closed');
  },
};

readline.createInterface({input: process.stdin}).on('line', (line) => {
  const [command, ...words] = line.split(' ');
  COMMANDS[command](...words).catch((error) => say(error instanceof Refused ? 'refused' : 'failed', error.message));
});
