'use strict';

// Takes a lock or leads an election, says so and keeps it until it is killed:
//
//	node hold.js lock|election NAME TTL HOST:PORT

const { Etcd3 } = require('etcd3');

async function main(kind, name, ttl, addr) {
  const client = new Etcd3({ hosts: `http://${addr}` });
  if (kind === 'lock') await client.lock(name).ttl(Number(ttl)).acquire();
  else await client.election(name, Number(ttl)).campaign('a process').wait();
  process.stdout.write('held\n');
}

main(...process.argv.slice(2));
