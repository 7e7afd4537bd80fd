'use strict';

const assert = require('node:assert/strict');
const { GRPCInvalidArgumentError, GRPCOutOfRangeError } = require('etcd3');
const { follows, refused } = require('./lib');

// numbered puts keys 00, 01, … below a prefix, each with its number as value.
async function numbered(client, prefix, n) {
  const keys = [];
  for (let i = 0; i < n; i++) {
    const key = `${prefix}${String(i).padStart(2, '0')}`;
    await client.put(key).value(String(i));
    keys.push(key);
  }
  return keys;
}

module.exports = {
  async 'put, get, delete'({ client }) {
    assert.equal(await client.get('kv/k'), null);
    assert.equal(await client.get('kv/k').exists(), false);
    await client.put('kv/k').value('7');
    assert.equal(await client.get('kv/k').string(), '7');
    assert.equal(await client.get('kv/k').number(), 7);
    assert.equal(await client.get('kv/k').exists(), true);
    assert.equal((await client.delete().key('kv/k')).deleted, '1');
    assert.equal((await client.delete().key('kv/k')).deleted, '0');
    assert.equal(await client.get('kv/k'), null);
  },

  async 'any byte in keys and values'({ client }) {
    const bytes = Buffer.from(Array.from({ length: 256 }, (_, i) => i));
    const key = Buffer.concat([Buffer.from('kv/'), bytes]);
    await client.put(key).value(bytes);
    assert.deepEqual(await client.get(key).buffer(), bytes);
    const { kvs } = await client.getAll().prefix('kv/\0').exec();
    assert.equal(kvs.length, 1);
    assert.deepEqual(kvs[0].key, key);
    await client.put('kv/empty').value('');
    assert.equal(await client.get('kv/empty'), '');
  },

  async 'large values, and too large ones'({ client }) {
    const large = 'x'.repeat(1 << 20);
    await client.put('kv/large').value(large);
    assert.equal(await client.get('kv/large'), large);
    await refused(client.put('kv/large').value('y'.repeat(1_700_000)).exec(),
      GRPCInvalidArgumentError, 'etcdserver: request is too large');
    assert.equal(await client.get('kv/large'), large);
  },

  async 'previous values'({ client }) {
    assert.equal((await client.put('kv/prev').value('1').getPrevious()).value, undefined);
    assert.equal((await client.put('kv/prev').value('2').getPrevious()).value.toString(), '1');
    const [gone] = await client.delete().key('kv/prev').getPrevious();
    assert.equal(gone.value.toString(), '2');
    assert.equal(gone.version, '2');
  },

  async 'touch keeps the value'({ client }) {
    await client.put('kv/touch').value('same');
    const before = (await client.get('kv/touch').exec()).kvs[0];
    await client.put('kv/touch').touch();
    const after = (await client.get('kv/touch').exec()).kvs[0];
    assert.equal(after.value.toString(), 'same');
    assert.equal(after.version, '2');
    assert.ok(follows(after.mod_revision, before.mod_revision));
    await refused(client.put('kv/untouched').touch(), GRPCInvalidArgumentError, 'etcdserver: key not found');
  },

  async 'revisions and versions'({ client }) {
    const at = async () => (await client.get('kv/rev').exec()).kvs[0];
    const first = (await client.put('kv/rev').value('1')).header.revision;
    let kv = await at();
    assert.deepEqual([kv.create_revision, kv.mod_revision, kv.version], [first, first, '1']);
    const second = (await client.put('kv/rev').value('2')).header.revision;
    assert.ok(follows(second, first));
    kv = await at();
    assert.deepEqual([kv.create_revision, kv.mod_revision, kv.version], [first, second, '2']);
    await client.delete().key('kv/rev');
    const again = (await client.put('kv/rev').value('3')).header.revision;
    kv = await at();
    assert.deepEqual([kv.create_revision, kv.mod_revision, kv.version], [again, again, '1']);
  },

  async 'prefix, count, keys'({ client }) {
    const keys = await numbered(client, 'kv/many/', 30);
    await client.put('kv/many').value('outside');
    assert.equal(await client.getAll().prefix('kv/many/').count(), 30);
    assert.deepEqual(await client.getAll().prefix('kv/many/').keys(), keys);
    const values = await client.getAll().prefix('kv/many/').numbers();
    assert.deepEqual(values, Object.fromEntries(keys.map((k, i) => [k, i])));
    assert.equal((await client.delete().prefix('kv/many/1')).deleted, '10');
    assert.equal(await client.getAll().prefix('kv/many/').count(), 20);
  },

  async 'sort and limit'({ client }) {
    await client.put('kv/sort/a').value('3');
    await client.put('kv/sort/b').value('1');
    await client.put('kv/sort/c').value('2');
    await client.put('kv/sort/a').value('3');
    await client.put('kv/sort/a').value('3');
    await client.put('kv/sort/b').value('1');
    const want = { Key: 'abc', Version: 'cba', Create: 'abc', Mod: 'cab', Value: 'bca' };
    for (const [target, order] of Object.entries(want)) {
      const keys = [...order].map(k => `kv/sort/${k}`);
      const all = () => client.getAll().prefix('kv/sort/');
      assert.deepEqual(await all().sort(target, 'Ascend').keys(), keys, target);
      assert.deepEqual(await all().sort(target, 'Descend').keys(), [...keys].reverse(), target);
      const page = await all().sort(target, 'Descend').limit(1).exec();
      assert.equal(page.kvs[0].key.toString(), keys[2], target);
      assert.deepEqual([page.kvs.length, page.count, page.more], [1, '3', true], target);
    }
  },

  async 'ranges'({ client }) {
    const keys = await numbered(client, 'kv/range/', 6);
    const range = { start: keys[1], end: keys[4] };
    assert.deepEqual(await client.getAll().inRange(range).keys(), keys.slice(1, 4));
    assert.equal((await client.delete().inRange(range)).deleted, '3');
    assert.deepEqual(await client.getAll().prefix('kv/range/').keys(), [keys[0], keys[4], keys[5]]);
    const all = await client.getAll().all().keys();
    assert.deepEqual(all, [...all].sort((a, b) => Buffer.compare(Buffer.from(a), Buffer.from(b))));
    assert.ok(all.includes(keys[0]));
  },

  async 'bounds of revisions'({ client }) {
    const keys = await numbered(client, 'kv/bounds/', 4);
    const revs = (await client.getAll().prefix('kv/bounds/').exec()).kvs.map(kv => kv.create_revision);
    const last = (await client.put(keys[0]).value('again')).header.revision;
    const all = () => client.getAll().prefix('kv/bounds/');
    assert.deepEqual(await all().maxCreateRevision(revs[1]).keys(), keys.slice(0, 2));
    assert.deepEqual(await all().minCreateRevision(revs[2]).keys(), keys.slice(2));
    assert.deepEqual(await all().minModRevision(last).keys(), [keys[0]]);
    assert.deepEqual(await all().maxModRevision(revs[1]).keys(), [keys[1]]);
  },

  async 'reads of the past'({ client }) {
    const first = (await client.put('kv/past').value('1')).header.revision;
    const second = (await client.put('kv/past').value('2')).header.revision;
    const gone = (await client.delete().key('kv/past')).header.revision;
    const head = (await client.put('kv/other').value('1')).header.revision;
    assert.equal(await client.get('kv/past').revision(first), '1');
    assert.equal(await client.get('kv/past').revision(second), '2');
    assert.equal(await client.get('kv/past').revision(gone), null);
    assert.equal(await client.get('kv/past').serializable(true), null);
    await refused(client.get('kv/past').revision(Number(head) + 1000).exec(), GRPCOutOfRangeError,
      'etcdserver: mvcc: required revision is a future revision');
    await client.kv.compact({ revision: head, physical: true });
    await refused(client.get('kv/past').revision(first).exec(), GRPCOutOfRangeError,
      'etcdserver: mvcc: required revision has been compacted');
    assert.equal(await client.get('kv/other').revision(head), '1');
  },

  async 'status and members'({ client, addr }) {
    const status = await client.maintenance.status();
    assert.match(status.version, /^3\.[7-9]\.\d+$/);
    assert.equal(status.leader, status.header.member_id);
    assert.ok(Number(status.dbSize) > 0 && Number(status.raftTerm) > 0 && Number(status.raftIndex) > 0, JSON.stringify(status));
    const { members } = await client.cluster.memberList({});
    assert.deepEqual(members.map(m => m.ID), [status.leader]);
    assert.deepEqual(members[0].clientURLs, [`http://${addr}`]);
  },
};
