'use strict';

const assert = require('node:assert/strict');
const { EtcdLockFailedError } = require('etcd3');
const { follow, refused } = require('./lib');

module.exports = {
  async 'keys are below the prefix'({ client }) {
    const ns = client.namespace('ns/keys/');
    await ns.put('a').value('1');
    await client.put('ns/other').value('2');
    assert.equal(await client.get('ns/keys/a'), '1');
    assert.equal(await ns.get('a'), '1');
    assert.equal(await ns.get('other'), null);
    assert.deepEqual(await ns.getAll().strings(), { a: '1' });
    const inner = ns.namespace('inner/');
    await inner.put('b').value('3');
    assert.equal(await client.get('ns/keys/inner/b'), '3');
    assert.equal((await ns.delete().all()).deleted, '2');
    assert.equal(await client.get('ns/other'), '2');
  },

  async 'watches see names without the prefix'({ client }) {
    const ns = client.namespace('ns/watch/');
    const tape = await follow(ns.watch().prefix('').withPreviousKV());
    await client.put('ns/watch/a').value('1');
    await client.put('ns/watched').value('outside');
    await ns.put('a').value('2');
    await tape.has(2);
    assert.equal(tape.told(), 'Put a=1, Put a=2');
    assert.equal(tape.events[1].prev_kv.key.toString(), 'a');
    await tape.watcher.cancel();
  },

  async 'transactions, leases and locks stay inside'({ client }) {
    const [a, b] = [client.namespace('ns/a/'), client.namespace('ns/b/')];
    const first = ns => ns.if('k', 'Create', '==', 0).then(ns.put('k').value('')).commit();
    assert.equal((await first(a)).succeeded, true);
    assert.equal((await first(b)).succeeded, true);
    assert.equal((await first(a)).succeeded, false);
    const [one, two] = [await a.lock('l').acquire(), await b.lock('l').acquire()];
    await refused(client.namespace('ns/').lock('a/l').acquire(), EtcdLockFailedError);
    const lease = a.lease(30);
    await lease.put('leased').value('');
    assert.equal(await client.get('ns/a/leased').exists(), true);
    await Promise.all([one.release(), two.release(), lease.revoke()]);
    assert.deepEqual(await client.getAll().prefix('ns/a/').keys(), ['ns/a/k']);
  },
};
