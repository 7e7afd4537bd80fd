'use strict';

// Watches a prefix and prints what it is told, a line for each event, until the
// key PREFIX + "end" is written:
//
//	node follow.js HOST:PORT PREFIX

const { Etcd3 } = require('etcd3');

async function main(addr, prefix) {
  const client = new Etcd3({ hosts: `http://${addr}` });
  const watcher = await client.watch().prefix(prefix).create();
  process.stdout.write('watching\n');
  watcher.on('data', ({ events }) => {
    for (const { type, kv } of events) {
      if (String(kv.key) === `${prefix}end`) process.exit(0);
      process.stdout.write(`${type} ${kv.key}=${kv.value}@${kv.mod_revision}\n`);
    }
  });
}

main(...process.argv.slice(2));
