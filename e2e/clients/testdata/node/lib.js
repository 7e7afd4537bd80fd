'use strict';

const { spawn } = require('node:child_process');
const { once } = require('node:events');
const path = require('node:path');
const { EtcdLockFailedError } = require('etcd3');

// within fails when a promise is not settled in time.
async function within(promise, what, ms = 20_000) {
  let timer;
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error(`${what}: not within ${ms} ms`)), ms);
  });
  try {
    return await Promise.race([promise, late]);
  } finally {
    clearTimeout(timer);
  }
}

// happens resolves with what an emitter's next event of a name carries.
function happens(emitter, name, what = name) {
  return within(new Promise(resolve => emitter.once(name, resolve)), what);
}

// Tape collects what a watcher is told.
class Tape {
  constructor(watcher) {
    this.watcher = watcher;
    // answers are the revision and the events of each answer; events are those of
    // all answers.
    this.answers = [];
    this.events = [];
    watcher.on('data', answer => {
      this.answers.push({ revision: answer.header.revision, events: answer.events });
      this.events.push(...answer.events);
    });
  }

  // has resolves when n events have come.
  async has(n) {
    const enough = new Promise(resolve => {
      const check = () => this.events.length >= n && resolve();
      this.watcher.on('data', check);
      check();
    });
    await within(enough, `${n} events`).catch(err => {
      throw new Error(`${err.message}: ${this.told()}`);
    });
    return this.events.slice(0, n);
  }

  // told says the events in short.
  told() {
    return this.events.map(e => `${e.type} ${e.kv.key}=${e.kv.value}`).join(', ');
  }
}

// follow creates a watch and returns its tape once the server has it.
async function follow(builder) {
  const watcher = builder.watcher();
  const tape = new Tape(watcher);
  await new Promise((resolve, reject) => {
    watcher.once('connected', resolve);
    watcher.once('error', reject);
  });
  return tape;
}

// acquire waits for a lock, for which the package itself only asks. The watch is
// there before it asks, so that no release goes unseen.
async function acquire(client, name, ttl) {
  const watcher = await client.watch().key(name).only('delete').create();
  let releases = 0;
  let wake = () => {};
  watcher.on('delete', () => {
    releases++;
    wake();
  });
  try {
    for (;;) {
      const seen = releases;
      const lock = client.lock(name).ttl(ttl);
      try {
        return await lock.acquire();
      } catch (err) {
        if (!(err instanceof EtcdLockFailedError)) throw err;
      }
      if (releases === seen) {
        await within(new Promise(resolve => { wake = resolve; }), `a release of ${name}`, 60_000);
      }
    }
  } finally {
    await watcher.cancel();
  }
}

// hold starts a process that takes a lock or leads an election, and returns a
// function that kills it.
async function hold(kind, name, ttl, addr) {
  const child = spawn(process.execPath, [path.join(__dirname, 'hold.js'), kind, name, String(ttl), addr],
    { stdio: ['ignore', 'pipe', 'inherit'] });
  const [said] = await within(once(child.stdout, 'data'), `a process holds ${name}`);
  if (String(said) !== 'held\n') throw new Error(`the process says ${said}`);
  return async () => {
    child.kill('SIGKILL');
    await once(child, 'exit');
  };
}

// refused fails unless a call is refused with an error of a class and a text.
async function refused(promise, kind, text = '') {
  let value;
  try {
    value = await promise;
  } catch (err) {
    if (err instanceof kind && err.message.includes(text)) return;
    throw new Error(`want ${kind.name} ${JSON.stringify(text)}, got ${err.constructor.name}: ${err.message}`);
  }
  throw new Error(`want ${kind.name} ${JSON.stringify(text)}, got the answer ${JSON.stringify(value)}`);
}

// With four shards revisions may have gaps, and a lease ends at one for each shard.
const fourShards = process.env.LATCHKEY_E2E_SHARDS === '4';

// follows says whether a revision may be the next one after another.
const follows = (rev, after) => BigInt(rev) === BigInt(after) + 1n || fourShards && BigInt(rev) > BigInt(after);

module.exports = { Tape, acquire, follow, follows, fourShards, happens, hold, refused, within };
