'use strict';

const assert = require('node:assert/strict');
const { STMConflictError } = require('etcd3');
const { refused } = require('./lib');

// The levels of isolation, for which the package exports no names.
const snapshot = 0, serializable = 1, repeatableReads = 2;

// Money moved between accounts is neither made nor lost.
function movesMoney(isolation) {
  return async ({ client }) => {
    const account = i => `stm/${isolation}/${i % 4}`;
    for (let i = 0; i < 4; i++) await client.put(account(i)).value('100');
    const move = async g => {
      for (let n = 0; n < 8; n++) {
        const [from, to] = [account(g), account(g + 1 + n % 3)];
        await client.stm({ isolation, retries: 1000 }).transact(async tx => {
          const a = await tx.get(from).number();
          const b = await tx.get(to).number();
          await tx.put(from).value(a - 1);
          await tx.put(to).value(b + 1);
        });
      }
    };
    await Promise.all([0, 1, 2, 3].map(move));
    const left = Object.values(await client.getAll().prefix(`stm/${isolation}/`).numbers());
    assert.equal(left.reduce((a, b) => a + b), 400, String(left));
  };
}

module.exports = {
  'Serializable moves money': movesMoney(serializable),
  'RepeatableReads moves money': movesMoney(repeatableReads),

  // At this level the package takes two keys of different age for a conflict.
  async 'SerializableSnapshot counts'({ client }) {
    const writers = 4, rounds = 8;
    await client.put('stm/count').value('0');
    const count = async () => {
      for (let i = 0; i < rounds; i++) {
        await client.stm({ isolation: snapshot, retries: 1000 }).transact(async tx => {
          await tx.put('stm/count').value(await tx.get('stm/count').number() + 1);
        });
      }
    };
    await Promise.all(Array.from({ length: writers }, count));
    assert.equal(await client.get('stm/count').number(), writers * rounds);
  },

  async 'a conflict is told'({ client }) {
    await client.put('stm/conflict').value('1');
    await refused(client.stm({ retries: 0 }).transact(async tx => {
      await tx.get('stm/conflict');
      await client.put('stm/conflict').value('2');
      await tx.put('stm/conflict').value('3');
    }), STMConflictError);
    assert.equal(await client.get('stm/conflict'), '2');
  },

  async 'a deletion is a conflict'({ client }) {
    await client.put('stm/deleted').value('1');
    let runs = 0;
    await client.stm().transact(async tx => {
      const seen = await tx.get('stm/deleted');
      if (runs++ === 0) await client.delete().key('stm/deleted');
      await tx.put('stm/deleted').value(`was ${seen}`);
    });
    assert.equal(runs, 2);
    assert.equal(await client.get('stm/deleted'), 'was null');
  },

  async 'reads see own writes, others do not'({ client }) {
    await client.put('stm/own').value('0');
    await client.stm().transact(async tx => {
      await tx.put('stm/own').value('1');
      assert.equal(await tx.get('stm/own'), '1');
      await tx.delete().key('stm/own');
      assert.equal(await tx.get('stm/own'), null);
      assert.equal(await client.get('stm/own'), '0');
      await tx.put('stm/own').value('2');
    });
    assert.equal(await client.get('stm/own'), '2');
  },
};
