'use strict';

const assert = require('node:assert/strict');
const { follow, follows, happens } = require('./lib');

module.exports = {
  async 'events are complete and in order'({ client }) {
    const tape = await follow(client.watch().prefix('watch/all/'));
    const writers = 5, rounds = 60;
    const write = async w => {
      for (let i = 1; i <= rounds; i++) {
        if (i % 10 === 0) await client.delete().key(`watch/all/${w}`);
        else await client.put(`watch/all/${w}`).value(String(i));
      }
    };
    await Promise.all(Array.from({ length: writers }, (_, w) => write(w)));
    await client.put('watch/all/end').value('');
    const events = await tape.has(writers * rounds + 1);
    let last = 0;
    const seen = Array(writers).fill(0);
    for (const { type, kv } of events.slice(0, -1)) {
      const rev = Number(kv.mod_revision);
      assert.ok(last === 0 || follows(rev, last), 'one writer after the other, none left out');
      last = rev;
      const w = Number(kv.key.toString().split('/').pop());
      const i = ++seen[w];
      assert.equal(type, i % 10 === 0 ? 'Delete' : 'Put', `event ${i} of ${w}`);
      if (type === 'Put') assert.equal(kv.value.toString(), String(i), `event ${i} of ${w}`);
    }
    assert.deepEqual(seen, Array(writers).fill(rounds));
    await tape.watcher.cancel();
  },

  async 'previous values'({ client }) {
    const tape = await follow(client.watch().key('watch/prev').withPreviousKV());
    await client.put('watch/prev').value('1');
    await client.put('watch/prev').value('2');
    await client.delete().key('watch/prev');
    const events = await tape.has(3);
    assert.deepEqual(events.map(e => `${e.type} ${e.kv.value} after ${e.prev_kv && e.prev_kv.value}`),
      ['Put 1 after null', 'Put 2 after 1', 'Delete  after 2']);
    await tape.watcher.cancel();
  },

  async 'without previous values there are none'({ client }) {
    const tape = await follow(client.watch().key('watch/noprev'));
    await client.put('watch/noprev').value('1');
    await client.delete().key('watch/noprev');
    for (const e of await tape.has(2)) assert.equal(e.prev_kv, null);
    await tape.watcher.cancel();
  },

  async 'only puts, only deletes'({ client }) {
    const puts = await follow(client.watch().prefix('watch/only/').only('put'));
    const deletes = await follow(client.watch().prefix('watch/only/').only('delete'));
    for (const key of ['a', 'b']) {
      await client.put(`watch/only/${key}`).value('');
      await client.delete().key(`watch/only/${key}`);
    }
    await Promise.all([puts.has(2), deletes.has(2)]);
    assert.equal(puts.told(), 'Put watch/only/a=, Put watch/only/b=');
    assert.equal(deletes.told(), 'Delete watch/only/a=, Delete watch/only/b=');
    await Promise.all([puts.watcher.cancel(), deletes.watcher.cancel()]);
  },

  async 'from the past'({ client }) {
    const first = (await client.put('watch/past').value('1')).header.revision;
    await client.put('watch/past').value('2');
    await client.delete().key('watch/past');
    await client.put('watch/past').value('3');
    const tape = await follow(client.watch().key('watch/past').startRevision(first).withPreviousKV());
    await tape.has(4);
    await client.put('watch/past').value('4');
    await tape.has(5);
    assert.equal(tape.told(), 'Put watch/past=1, Put watch/past=2, Delete watch/past=, Put watch/past=3, Put watch/past=4');
    assert.equal(tape.events[4].prev_kv.value.toString(), '3');
    await tape.watcher.cancel();
  },

  async 'a transaction comes as one'({ client }) {
    const tape = await follow(client.watch().prefix('watch/txn/'));
    await client.put('watch/txn/old').value('');
    const { header } = await client.if('watch/txn/old', 'Version', '==', 1).then(
      client.put('watch/txn/a').value('1'),
      client.put('watch/txn/b').value('2'),
      client.delete().key('watch/txn/old'),
    ).commit();
    await tape.has(4);
    assert.equal(tape.answers.length, 2);
    assert.equal(tape.answers[1].revision, header.revision);
    assert.equal(tape.told().replace(/^[^,]*, /, ''), 'Put watch/txn/a=1, Put watch/txn/b=2, Delete watch/txn/old=');
    await tape.watcher.cancel();
  },

  async 'many watches on one stream'({ client }) {
    const tapes = [];
    for (let i = 0; i < 50; i++) tapes.push(await follow(client.watch().key(`watch/many/${i}`)));
    const cancelled = tapes.filter((_, i) => i % 5 === 0);
    await Promise.all(cancelled.map(t => t.watcher.cancel()));
    for (let round = 0; round < 3; round++) {
      await Promise.all(tapes.map((_, i) => client.put(`watch/many/${i}`).value(String(round))));
    }
    for (const [i, tape] of tapes.entries()) {
      if (i % 5 === 0) continue;
      await tape.has(3);
      assert.equal(tape.told(), [0, 1, 2].map(r => `Put watch/many/${i}=${r}`).join(', '));
    }
    assert.deepEqual(cancelled.map(t => t.events.length), cancelled.map(() => 0));
    await Promise.all(tapes.filter((_, i) => i % 5 !== 0).map(t => t.watcher.cancel()));
  },

  async 'a watch of what is compacted ends'({ client }) {
    const first = (await client.put('watch/gone').value('1')).header.revision;
    const head = (await client.put('watch/gone').value('2')).header.revision;
    await client.kv.compact({ revision: head });
    const gone = client.watch().key('watch/gone').startRevision(first).watcher();
    const error = await happens(gone, 'error', 'the end of the watch');
    assert.match(error.message, /^Watcher canceled/);
    const kept = await follow(client.watch().key('watch/gone').startRevision(head));
    await kept.has(1);
    assert.equal(kept.told(), 'Put watch/gone=2');
    await kept.watcher.cancel();
  },

  async 'two clients see the same'(env) {
    const [a, b] = await Promise.all([env.client, env.dial()].map(c => follow(c.watch().prefix('watch/same/'))));
    await Promise.all(Array.from({ length: 40 }, (_, i) => env.client.put(`watch/same/${i % 3}`).value(String(i))));
    await Promise.all([a.has(40), b.has(40)]);
    assert.equal(a.told(), b.told());
    await Promise.all([a.watcher.cancel(), b.watcher.cancel()]);
  },
};
