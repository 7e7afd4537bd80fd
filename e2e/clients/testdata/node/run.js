'use strict';

// Runs the cases of one topic against a server and prints a line of JSON for each:
//
//	node run.js TOPIC HOST:PORT [AUTHORITY]
//
// AUTHORITY is the file of a certificate, with which the server is spoken to by TLS.
// The process ends with an error when a case failed.

const fs = require('node:fs');
const { Etcd3 } = require('etcd3');
const { within } = require('./lib');

// Env is what a case works with: a client of its own server, and more of them.
class Env {
  constructor(addr, authority) {
    this.addr = addr;
    this.tls = authority === undefined ? {} : { credentials: { rootCertificate: fs.readFileSync(authority) } };
    this.clients = [];
    this.client = this.dial();
  }

  // dial returns a further client, which is closed behind the last case.
  dial(options = {}) {
    const client = new Etcd3({ hosts: this.addr, ...this.tls, ...options });
    this.clients.push(client);
    return client;
  }

  close() {
    for (const client of this.clients) client.close();
  }
}

async function main(topic, addr, authority) {
  const env = new Env(addr, authority);
  let failed = false;
  for (const [name, run] of Object.entries(require(`./${topic}`))) {
    let error;
    try {
      await within(run(env), name, 60_000);
    } catch (err) {
      error = err.stack || String(err);
      failed = true;
    }
    process.stdout.write(`${JSON.stringify({ case: name, error })}\n`);
  }
  env.close();
  // Streams that a case left behind must not keep the process.
  process.exit(failed ? 1 : 0);
}

main(...process.argv.slice(2));
