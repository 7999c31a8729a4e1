// A program that uses clients/node: node node_story.js TARGET. A line on stdin is a call, which has been made when a line on
// stdout says `asked`; other lines on stdout say what has come true.
'use strict';

const readline = require('readline');
const {Agent, Refused} = require('failback');

const agent = new Agent({target: process.argv[2], name: 'carts', ttl: Number(process.env.STORY_TTL || 10)});
const say = (...words) => console.log(words.join(' '));
process.on('warning', ({message}) => say('warning', message));
const limit = (milliseconds) => milliseconds && {signal: AbortSignal.timeout(Number(milliseconds))};

const COMMANDS = {
  register: async (id, port, milliseconds, k = 'v') => {
    await agent.register({service: 'carts', id, address: '10.0.0.7', port: Number(port), weight: 7, metadata: {k}},
        limit(milliseconds));
    say('registered', id, port);
  },
  unregister: async (id, milliseconds) => {
    await agent.unregister({service: 'carts', id}, limit(milliseconds));
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
  COMMANDS[command](...words).catch((error) => {
    if (error.name === 'TimeoutError') say('late', line);
    else say(error instanceof Refused ? 'refused' : 'failed', error.message);
  });
  say('asked', line);
});
