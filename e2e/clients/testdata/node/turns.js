'use strict';

// Takes turns with other processes in holding locks, and prints each time that it
// held one:
//
//	node turns.js HOST:PORT LOCKS ROUNDS
//
// Beside each lock is a counter that nothing but the lock guards.

const { Etcd3 } = require('etcd3');
const { acquire } = require('./lib');

async function main(addr, locks, rounds) {
  const client = new Etcd3({ hosts: `http://${addr}` });
  const turns = async lock => {
    for (let i = 0; i < rounds; i++) {
      const held = await acquire(client, `turns/${lock}`, 30);
      const acquired = process.hrtime.bigint();
      const { kvs } = await client.get(`turns/${lock}`).exec();
      if (kvs.length !== 1 || kvs[0].lease !== await held.leaseId()) {
        throw new Error(`the lock was lost: ${JSON.stringify(kvs)}`);
      }
      const n = await client.get(`count/${lock}`).number();
      await client.put(`count/${lock}`).value(n + 1);
      const released = process.hrtime.bigint();
      await held.release();
      const token = kvs[0].create_revision;
      process.stdout.write(`{"lock":${lock},"token":${token},"acquired":${acquired},"released":${released}}\n`);
    }
  };
  await Promise.all(Array.from({ length: locks }, (_, lock) => turns(lock)));
  // The package's timers outlive the leases that they were for.
  process.exit(0);
}

main(process.argv[2], Number(process.argv[3]), Number(process.argv[4]));
