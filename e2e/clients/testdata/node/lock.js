'use strict';

const assert = require('node:assert/strict');
const { EtcdLockFailedError } = require('etcd3');
const { acquire, follow, hold, refused, within } = require('./lib');

module.exports = {
  async 'has one holder'(env) {
    const other = env.dial();
    const lock = await env.client.lock('lock/one').acquire();
    await refused(other.lock('lock/one').acquire(), EtcdLockFailedError);
    const { kvs } = await other.get('lock/one').exec();
    assert.equal(kvs[0].lease, await lock.leaseId());
    await lock.release();
    const next = await other.lock('lock/one').acquire();
    const after = (await other.get('lock/one').exec()).kvs[0];
    assert.ok(BigInt(after.create_revision) > BigInt(kvs[0].create_revision), 'tokens grow');
    await next.release();
  },

  async 'do holds it, and lets go however it ends'({ client }) {
    const got = await client.lock('lock/do').do(async () => {
      await refused(client.lock('lock/do').acquire(), EtcdLockFailedError);
      return 'done';
    });
    assert.equal(got, 'done');
    assert.equal(await client.get('lock/do').exists(), false);
    await refused(client.lock('lock/do').do(() => { throw new TypeError('oops'); }), TypeError, 'oops');
    assert.equal(await client.get('lock/do').exists(), false);
  },

  async 'a refused caller leaves no lease'({ client }) {
    const lock = await client.lock('lock/lease').acquire();
    const leases = async () => (await client.leaseClient.leaseLeases()).leases.map(l => l.ID).sort();
    const before = await leases();
    await refused(client.lock('lock/lease').acquire(), EtcdLockFailedError);
    assert.deepEqual(await leases(), before);
    await lock.release();
  },

  async 'kept beyond its time to live while its holder lives'(env) {
    const ttl = 2;
    const lock = await env.client.lock('lock/kept').ttl(ttl).acquire();
    const waiter = acquire(env.dial(), 'lock/kept', 30);
    const end = process.hrtime.bigint() + BigInt(ttl) * 2_000_000_000n;
    while (process.hrtime.bigint() < end) {
      assert.equal((await env.client.get('lock/kept').exec()).kvs[0].lease, await lock.leaseId());
    }
    await lock.release();
    await (await waiter).release();
  },

  async 'free when its holder is killed'(env) {
    const kill = await hold('lock', 'lock/dead', 2, env.addr);
    const waiter = acquire(env.client, 'lock/dead', 30);
    await kill();
    await (await within(waiter, 'the lock of a killed process')).release();
  },

  async 'free when its lease is revoked'(env) {
    const lock = await env.client.lock('lock/revoked').acquire();
    const waiter = acquire(env.dial(), 'lock/revoked', 30);
    await env.client.leaseClient.leaseRevoke({ ID: await lock.leaseId() });
    const next = await waiter;
    await lock.release();
    assert.equal((await env.client.get('lock/revoked').exec()).kvs[0].lease, await next.leaseId(), 'a late release does no harm');
    await next.release();
  },

  // What the clients count is guarded by nothing but the lock.
  async 'many clients, one counter'(env) {
    const clients = 8, rounds = 8;
    await env.client.put('lock/counter').value('0');
    const count = async client => {
      for (let i = 0; i < rounds; i++) {
        const lock = await acquire(client, 'lock/many', 30);
        const n = await client.get('lock/counter').number();
        await client.put('lock/counter').value(n + 1);
        await lock.release();
      }
    };
    const tape = await follow(env.client.watch().key('lock/many'));
    await Promise.all(Array.from({ length: clients }, () => count(env.dial())));
    assert.equal(await env.client.get('lock/counter').number(), clients * rounds);
    const events = await tape.has(2 * clients * rounds);
    assert.deepEqual(events.map(e => e.type), events.map((_, i) => (i % 2 === 0 ? 'Put' : 'Delete')));
    await tape.watcher.cancel();
  },
};
