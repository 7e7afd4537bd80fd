'use strict';

const assert = require('node:assert/strict');
const {
  EtcdAuthenticationFailedError, EtcdPermissionDeniedError, EtcdRoleExistsError, EtcdUserExistsError,
  EtcdUserNotFoundError, GRPCInvalidArgumentError,
} = require('etcd3');
const { acquire, follow, happens, refused } = require('./lib');

// login returns a client of a user whose password is the name.
function login(env, username, password = username) {
  return env.dial({ auth: { username, password } });
}

// Each case stands on those above it.
module.exports = {
  async 'users and roles are made'(env) {
    const { client } = env;
    const role = await client.role('app').create();
    await role.grant([
      { permission: 'Readwrite', range: client.range({ prefix: 'app/' }) },
      { permission: 'Read', key: 'shared' },
    ]);
    await refused(client.role('app').create(), EtcdRoleExistsError);
    const user = await client.user('ann').create('ann');
    await refused(client.user('ann').create('ann'), EtcdUserExistsError);
    await user.addRole('app');
    assert.deepEqual((await user.roles()).map(r => r.name), ['app']);
    const permissions = await client.role('app').permissions();
    assert.deepEqual(permissions.map(p => `${p.permission} ${p.range.start}`), ['Readwrite app/', 'Read shared']);
    await client.user('root').create('root');
    await client.role('root').create();
    await client.user('root').addRole('root');
    assert.deepEqual((await client.getUsers()).map(u => u.name), ['ann', 'root']);
    assert.deepEqual((await client.getRoles()).map(r => r.name), ['app', 'root']);
    await refused(client.user('bob').addRole('app'), EtcdUserNotFoundError);
    await client.put('shared').value('for all');
    await client.auth.authEnable();
  },

  async 'who has no name has no rights'(env) {
    await refused(env.client.get('app/k').exec(), GRPCInvalidArgumentError, 'etcdserver: user name is empty');
    await refused(login(env, 'ann', 'wrong').get('app/k').exec(), EtcdAuthenticationFailedError);
    await refused(login(env, 'bob').get('app/k').exec(), EtcdAuthenticationFailedError);
  },

  async 'rights on keys'(env) {
    const ann = login(env, 'ann');
    await ann.put('app/k').value('1');
    assert.equal(await ann.get('app/k'), '1');
    assert.equal(await ann.get('shared'), 'for all');
    await refused(ann.put('shared').value('mine').exec(), EtcdPermissionDeniedError);
    await refused(ann.get('other').exec(), EtcdPermissionDeniedError);
    await refused(ann.getAll().all().exec(), EtcdPermissionDeniedError);
    await refused(ann.if('app/k', 'Version', '>', 0).then(ann.put('other').value('')).commit(), EtcdPermissionDeniedError);
    await refused(ann.if('other', 'Version', '>', 0).then(ann.get('app/k')).commit(), EtcdPermissionDeniedError);
    await refused(ann.role('more').create(), EtcdPermissionDeniedError);
    assert.equal(await login(env, 'root').get('shared'), 'for all');
  },

  async 'watches, leases and locks of a user'(env) {
    const ann = login(env, 'ann');
    const tape = await follow(ann.watch().prefix('app/'));
    const denied = ann.watch().key('other').watcher();
    assert.match((await happens(denied, 'error', 'the refusal of a watch')).message, /permission denied/);
    const lock = await ann.lock('app/lock').ttl(5).acquire();
    const waiter = acquire(login(env, 'ann'), 'app/lock', 5);
    await happens(lock.lease, 'keepaliveSucceeded');
    await lock.release();
    await (await waiter).release();
    await refused(ann.lock('lock').acquire(), EtcdPermissionDeniedError);
    await tape.has(4);
    assert.deepEqual(tape.events.map(e => e.type), ['Put', 'Delete', 'Put', 'Delete']);
    await tape.watcher.cancel();
  },

  async 'rights and passwords change'(env) {
    const [ann, root] = [login(env, 'ann'), login(env, 'root')];
    assert.equal(await ann.get('shared'), 'for all');
    await root.role('app').revoke({ permission: 'Read', key: 'shared' });
    await refused(ann.get('shared').exec(), EtcdPermissionDeniedError);
    await root.user('ann').setPassword('new');
    await refused(login(env, 'ann').get('app/k').exec(), EtcdAuthenticationFailedError);
    assert.equal(await login(env, 'ann', 'new').get('app/k'), '1');
    await root.user('ann').removeRole('app');
    await refused(login(env, 'ann', 'new').get('app/k').exec(), EtcdPermissionDeniedError);
    await root.user('ann').delete();
    await refused(login(env, 'ann', 'new').get('app/k').exec(), EtcdAuthenticationFailedError);
    await root.role('app').delete();
    assert.deepEqual((await root.getRoles()).map(r => r.name), ['root']);
  },

  async 'without users again'(env) {
    await login(env, 'root').auth.authDisable();
    assert.equal(await env.client.get('app/k'), '1');
  },
};
