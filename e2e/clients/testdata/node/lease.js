'use strict';

const assert = require('node:assert/strict');
const { EtcdLeaseInvalidError, GRPCFailedPreconditionError } = require('etcd3');
const { follow, fourShards, happens, refused } = require('./lib');

module.exports = {
  async 'keys go with their lease, in one revision'({ client }) {
    const tape = await follow(client.watch().prefix('lease/keys/').only('delete'));
    const lease = client.lease(30);
    await lease.put('lease/keys/a').value('1');
    await lease.put('lease/keys/b').value('2');
    await client.put('lease/keys/free').value('3');
    const id = await lease.grant();
    assert.equal((await client.get('lease/keys/a').exec()).kvs[0].lease, id);
    const info = await client.leaseClient.leaseTimeToLive({ ID: id, keys: true });
    assert.equal(info.grantedTTL, '30');
    assert.ok(Number(info.TTL) > 0 && Number(info.TTL) <= 30, info.TTL);
    assert.deepEqual(info.keys.map(String), ['lease/keys/a', 'lease/keys/b']);
    assert.ok((await client.leaseClient.leaseLeases()).leases.some(l => l.ID === id));
    await lease.revoke();
    await tape.has(2);
    if (fourShards) {
      assert.deepEqual(tape.told().split(', ').sort(), ['Delete lease/keys/a=', 'Delete lease/keys/b=']);
    } else {
      assert.equal(tape.told(), 'Delete lease/keys/a=, Delete lease/keys/b=');
      assert.equal(tape.events[0].kv.mod_revision, tape.events[1].kv.mod_revision);
    }
    assert.deepEqual(await client.getAll().prefix('lease/keys/').keys(), ['lease/keys/free']);
    assert.equal((await client.leaseClient.leaseTimeToLive({ ID: id })).TTL, '-1');
    await tape.watcher.cancel();
  },

  async 'kept alive beyond its time to live'({ client }) {
    const ttl = 2;
    const lease = client.lease(ttl);
    await lease.put('lease/alive').value('');
    const begin = process.hrtime.bigint();
    while (process.hrtime.bigint() - begin < BigInt(ttl) * 2_000_000_000n) {
      const answer = await happens(lease, 'keepaliveSucceeded');
      assert.equal(answer.TTL, String(ttl));
    }
    assert.equal(await client.get('lease/alive').exists(), true);
    await lease.revoke();
    assert.equal(await client.get('lease/alive').exists(), false);
  },

  async 'ends when it is not kept alive, and not before'({ client }) {
    const ttl = 2;
    const tape = await follow(client.watch().key('lease/ends'));
    const asked = process.hrtime.bigint();
    const lease = client.lease(ttl, { autoKeepAlive: false });
    await lease.put('lease/ends').value('');
    await tape.has(2);
    const lived = Number(process.hrtime.bigint() - asked) / 1e9;
    assert.equal(tape.told(), 'Put lease/ends=, Delete lease/ends=');
    assert.ok(lived >= ttl && lived < ttl + 5, `ended after ${lived} s`);
    await refused(lease.keepaliveOnce(), EtcdLeaseInvalidError);
    await tape.watcher.cancel();
  },

  async 'tells of its loss'({ client }) {
    const lease = client.lease(3);
    const id = await lease.grant();
    const lost = happens(lease, 'lost', 'the loss of the lease');
    await client.leaseClient.leaseRevoke({ ID: id });
    assert.ok(await lost instanceof EtcdLeaseInvalidError);
    assert.equal(lease.revoked(), true);
    await lease.revoke();
  },

  async 'a put with a lost lease is refused'({ client }) {
    const lease = client.lease(30, { autoKeepAlive: false });
    await client.leaseClient.leaseRevoke({ ID: await lease.grant() });
    await refused(lease.put('lease/lost').value('').exec(), EtcdLeaseInvalidError, 'etcdserver: requested lease not found');
    assert.equal(lease.revoked(), true);
    assert.equal(await client.get('lease/lost').exists(), false);
  },

  async 'renewed once'({ client }) {
    const lease = client.lease(30, { autoKeepAlive: false });
    assert.equal((await lease.keepaliveOnce()).TTL, '30');
    await lease.revoke();
    await refused(client.leaseClient.leaseRevoke({ ID: await lease.grant() }), EtcdLeaseInvalidError);
  },

  async 'an id of ones own'({ client }) {
    assert.equal((await client.leaseClient.leaseGrant({ ID: 7001, TTL: 30 })).ID, '7001');
    await refused(client.leaseClient.leaseGrant({ ID: 7001, TTL: 30 }), GRPCFailedPreconditionError,
      'etcdserver: lease already exists');
    await client.leaseClient.leaseRevoke({ ID: 7001 });
  },

  async 'a key moves to another lease, or to none'({ client }) {
    const [a, b] = [client.lease(30), client.lease(30)];
    await a.put('lease/moves').value('1');
    await a.put('lease/stays').value('1');
    await b.put('lease/moves').value('2');
    await client.put('lease/stays').value('2');
    await a.revoke();
    assert.equal(await client.get('lease/moves'), '2');
    assert.equal(await client.get('lease/stays'), '2');
    await b.revoke();
    assert.equal(await client.get('lease/moves'), null);
    assert.equal(await client.get('lease/stays'), '2');
  },

  async 'a put may keep its lease'({ client }) {
    const lease = client.lease(30);
    await lease.put('lease/keep').value('1');
    await client.put('lease/keep').value('2').ignoreLease();
    const kv = (await client.get('lease/keep').exec()).kvs[0];
    assert.deepEqual([kv.value.toString(), kv.lease], ['2', await lease.grant()]);
    await lease.revoke();
    assert.equal(await client.get('lease/keep'), null);
  },
};
