// What this process wants of each key, and what of that is still to be sent. Does no I/O and reads no clock.
//
// One record for each key; a newer intent takes the place of an older one. There is one sender. It takes a batch, sends
// it, and says of each item how it ended, with accepted(), refused(), apart() or later(), before it takes the next: so no
// older intent is sent after a newer one. An outcome is that of the intent that was sent and of all before it: accepted()
// and refused() return who waits for those. Waiters are whatever the caller likes; they may leave, and the intent stays.
'use strict';

class Intents {
  constructor() {
    // By key, a string: {intent, accepted, waiters, alone}. An intent is {key, number, message, removal}; a key's later
    // one has a higher number. `accepted` is what the sidecar accepted last, null for nothing; `waiters` have the
    // numbers of their intents.
    this._records = new Map();
    // Keys, in the order in which they are sent.
    this._due = new Set();
    this._later = new Set();
    this._number = 0;
  }

  put(key, message, removal, waiter) {
    if (!this._records.has(key)) {
      this._records.set(key, {intent: null, accepted: null, waiters: new Map(), alone: false});
    }
    const record = this._records.get(key);
    this._want(key, record, message, removal);
    record.waiters.set(waiter, record.intent.number);
  }

  // The waiter waits no longer; what it wants stays wanted.
  leave(key, waiter) {
    const record = this._records.get(key);
    if (record) record.waiters.delete(waiter);
  }

  // A session holds nothing at first: everything is due.
  sessionOpened() {
    this._due = new Set(this._records.keys());
    this._later.clear();
  }

  // The next to be sent: all registrations, or all removals.
  batch(limit) {
    const taken = [];
    for (const key of this._due) {
      const {intent, alone} = this._records.get(key);
      if (taken.length === limit || (taken.length && (alone || intent.removal !== taken[0].removal))) break;
      taken.push(intent);
      if (alone) break;
    }
    taken.forEach(({key}) => this._due.delete(key));
    return taken;
  }

  accepted(intent) {
    const record = this._records.get(intent.key);
    if (!record) return [];
    record.accepted = intent.removal ? null : intent.message;
    record.alone = false;
    if (intent.removal && record.intent === intent) this._forget(intent.key);
    return this._waiters(record, intent);
  }

  // What the sidecar accepted before is wanted again, unless there is a newer intent.
  refused(intent) {
    const record = this._records.get(intent.key);
    if (!record) return [];
    if (record.intent === intent && record.accepted === null) {
      this._forget(intent.key);
    } else if (record.intent === intent && record.accepted !== intent.message) {
      this._want(intent.key, record, record.accepted, false);
    }
    return this._waiters(record, intent);
  }

  // Refused as a whole: each is due by itself.
  apart(batch) {
    for (const {key} of batch.filter((intent) => this._records.has(intent.key))) {
      this._records.get(key).alone = true;
      this._due.add(key);
    }
  }

  // Not decided: the key's newest intent is due at the next retry().
  later({key}) {
    if (this._records.has(key) && !this._due.has(key)) this._later.add(key);
  }

  retry() {
    this._later.forEach((key) => this._due.add(key));
    this._later.clear();
  }

  // No session can be opened: refuses each intent that is waited for.
  refusedAll() {
    const waited = [...this._records.values()].filter((record) => record.waiters.size).map((record) => record.intent);
    return waited.flatMap((intent) => this.refused(intent));
  }

  _want(key, record, message, removal) {
    record.intent = {key, number: ++this._number, message, removal};
    this._later.delete(key);
    this._due.add(key);
  }

  _forget(key) {
    this._records.delete(key);
    this._due.delete(key);
    this._later.delete(key);
  }

  _waiters(record, intent) {
    const waiters = [...record.waiters].filter(([, number]) => number <= intent.number).map(([waiter]) => waiter);
    waiters.forEach((waiter) => record.waiters.delete(waiter));
    return waiters;
  }
}

module.exports = {Intents};
