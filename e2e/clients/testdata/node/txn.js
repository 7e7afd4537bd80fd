'use strict';

const assert = require('node:assert/strict');
const { GRPCInvalidArgumentError } = require('etcd3');
const { fourShards, refused } = require('./lib');

module.exports = {
  async 'then and else'({ client }) {
    const attempt = () => client.if('txn/k', 'Create', '==', 0)
      .then(client.put('txn/k').value('mine'))
      .else(client.get('txn/k'))
      .commit();
    const won = await attempt();
    assert.equal(won.succeeded, true);
    assert.equal(won.responses[0].response, 'response_put');
    const kv = (await client.get('txn/k').exec()).kvs[0];
    assert.equal(kv.create_revision, won.header.revision);
    const lost = await attempt();
    assert.equal(lost.succeeded, false);
    if (!fourShards) assert.equal(lost.header.revision, won.header.revision, 'a transaction that only reads has a revision');
    assert.equal(lost.responses[0].response_range.kvs[0].value.toString(), 'mine');
  },

  async 'every comparison'({ client }) {
    await client.put('txn/cmp').value('a');
    await client.put('txn/cmp').value('b');
    const kv = (await client.get('txn/cmp').exec()).kvs[0];
    const sides = {
      Value: ['a', 'b', 'c'],
      Version: [1, 2, 3],
      Create: [0, 1, 2].map(i => Number(kv.create_revision) + i - 1),
      Mod: [0, 1, 2].map(i => Number(kv.mod_revision) + i - 1),
      Lease: [-1, 0, 1],
    };
    // Whether the key's own column is op than what is below, equal and above.
    const want = { '==': [false, true, false], '!=': [true, false, true], '<': [false, false, true], '>': [true, false, false] };
    for (const [column, values] of Object.entries(sides)) {
      for (const [op, holds] of Object.entries(want)) {
        for (const i of [0, 1, 2]) {
          const { succeeded } = await client.if('txn/cmp', column, op, values[i]).commit();
          assert.equal(succeeded, holds[i], `${column} ${op} ${values[i]}`);
        }
      }
    }
  },

  async 'all comparisons must hold'({ client }) {
    await client.put('txn/a').value('1');
    await client.put('txn/b').value('2');
    const both = (a, b) => client.if('txn/a', 'Value', '==', a).and('txn/b', 'Value', '==', b).commit();
    assert.equal((await both('1', '2')).succeeded, true);
    assert.equal((await both('1', '1')).succeeded, false);
    assert.equal((await both('2', '2')).succeeded, false);
  },

  async 'operations see each other and share a revision'({ client }) {
    await client.put('txn/many/old').value('old');
    const result = await client.if('txn/many/old', 'Version', '>', 0)
      .then(
        client.put('txn/many/1').value('1'),
        client.put('txn/many/2').value('2'),
        client.delete().key('txn/many/old'),
        client.getAll().prefix('txn/many/'),
      ).commit();
    assert.equal(result.succeeded, true);
    assert.deepEqual(result.responses.map(r => r.response),
      ['response_put', 'response_put', 'response_delete_range', 'response_range']);
    assert.equal(result.responses[2].response_delete_range.deleted, '1');
    const { kvs } = result.responses[3].response_range;
    assert.deepEqual(kvs.map(kv => `${kv.key}=${kv.value}@${kv.mod_revision}`),
      [`txn/many/1=1@${result.header.revision}`, `txn/many/2=2@${result.header.revision}`]);
  },

  async 'transactions in transactions'({ client }) {
    const bytes = s => Buffer.from(s);
    const put = (key, value) => ({ request_put: { key: bytes(key), value: bytes(value) } });
    const result = await client.kv.txn({
      compare: [],
      success: [{
        request_txn: {
          compare: [{ key: bytes('txn/inner'), target: 'CREATE', result: 'EQUAL', create_revision: 0 }],
          success: [put('txn/inner', 'then')],
          failure: [put('txn/inner', 'else')],
        },
      }],
      failure: [],
    });
    assert.equal(result.responses[0].response_txn.succeeded, true);
    assert.equal(await client.get('txn/inner'), 'then');
  },

  async 'what a transaction refuses'({ client }) {
    await refused(client.if('txn/dup', 'Create', '==', 0)
      .then(client.put('txn/dup').value('1'), client.put('txn/dup').value('2')).commit(),
    GRPCInvalidArgumentError, 'etcdserver: duplicate key given in txn request');
    const puts = Array.from({ length: 129 }, (_, i) => client.put(`txn/dup/${i}`).value(''));
    await refused(client.if('txn/dup', 'Create', '==', 0).then(...puts).commit(),
      GRPCInvalidArgumentError, 'etcdserver: too many operations in txn request');
    assert.equal(await client.getAll().prefix('txn/dup').count(), 0);
  },

  async 'concurrent counting by compare and swap'({ client }) {
    const writers = 8, rounds = 20;
    await client.put('txn/counter').value('0');
    const count = async () => {
      for (let done = 0; done < rounds;) {
        const kv = (await client.get('txn/counter').exec()).kvs[0];
        const { succeeded } = await client.if('txn/counter', 'Mod', '==', kv.mod_revision)
          .then(client.put('txn/counter').value(Number(kv.value) + 1)).commit();
        if (succeeded) done++;
      }
    };
    await Promise.all(Array.from({ length: writers }, count));
    const kv = (await client.get('txn/counter').exec()).kvs[0];
    assert.deepEqual([Number(kv.value), Number(kv.version)], [writers * rounds, writers * rounds + 1]);
  },
};
