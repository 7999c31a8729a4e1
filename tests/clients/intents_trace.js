// Carries out commands from stdin on the table of clients/node, and prints each with its result; see intents_cases.txt.
'use strict';

const {Intents} = require(process.argv[2]);

let table = new Intents();
let sent = {};

const show = ({key, message, removal}) => removal ? `${key}-` : `${key}=${message.value}`;
const COMMANDS = {
  put: (key, value, waiter) => table.put(key, {value}, value === '-', waiter),
  leave: (key, waiter) => table.leave(key, waiter),
  open: () => table.sessionOpened(),
  batch: (limit) => {
    const batch = table.batch(Number(limit));
    batch.forEach((intent) => { sent[intent.key] = intent; });
    return batch.map(show);
  },
  accepted: (key) => table.accepted(sent[key]),
  refused: (key) => table.refused(sent[key]),
  apart: (...keys) => table.apart(keys.map((key) => sent[key])),
  later: (key) => table.later(sent[key]),
  retry: () => table.retry(),
  refused_all: () => table.refusedAll(),
};

for (const line of require('fs').readFileSync(0, 'utf8').split('\n').slice(0, -1)) {
  const [command, ...words] = line.split(' ->')[0].split(' ');
  if (line.startsWith('#')) [table, sent] = [new Intents(), {}];
  const result = line && !line.startsWith('#') ? COMMANDS[command](...words) : undefined;
  console.log(result ? [`${line.split(' ->')[0]} ->`, ...result].join(' ') : line);
}
