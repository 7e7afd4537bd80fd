'use strict';

const assert = require('node:assert/strict');
const { EtcdLeaseInvalidError, NotCampaigningError } = require('etcd3');
const { happens, hold, refused, within } = require('./lib');

// stand makes a candidate and resolves when it leads or waits behind another one.
async function stand(election, value) {
  const campaign = election.campaign(value);
  campaign.elected = false;
  campaign.once('elected', () => { campaign.elected = true; });
  await within(new Promise((resolve, reject) => {
    campaign.once('elected', resolve);
    campaign.once('_isWaiting', resolve);
    campaign.once('error', reject);
  }), `${value} stands`);
  return campaign;
}

// changed resolves when an observer sees a leader, undefined for none.
async function changed(observer, want) {
  while (observer.leader() !== want) await happens(observer, 'change', `${want} is seen as the leader`);
}

module.exports = {
  async 'leaders follow in the order of standing'(env) {
    const elections = [env.client, env.dial(), env.dial()].map(c => c.election('order', 30));
    const campaigns = [];
    for (const [i, election] of elections.entries()) campaigns.push(await stand(election, `c${i}`));
    for (const [i, campaign] of campaigns.entries()) {
      if (!campaign.elected) await happens(campaign, 'elected', `c${i} leads`);
      assert.deepEqual(campaigns.map(c => c.elected), campaigns.map((_, n) => n <= i));
      assert.equal(await env.client.election('order').leader(), `c${i}`);
      await campaign.resign();
    }
    assert.equal(await env.client.election('order').leader(), undefined);
  },

  async 'observers see each leader'(env) {
    const election = env.client.election('seen', 30);
    const observer = await env.dial().election('seen').observe();
    assert.equal(observer.leader(), undefined);
    const first = await stand(election, 'first');
    await changed(observer, 'first');
    const second = await stand(election, 'second');
    await first.proclaim('first, louder');
    await changed(observer, 'first, louder');
    assert.equal(await election.leader(), 'first, louder');
    await first.resign();
    await changed(observer, 'second');
    await second.resign();
    await changed(observer, undefined);
    await observer.cancel();
  },

  async 'a leader that loses its lease is followed'(env) {
    const election = env.client.election('lost', 3);
    const first = await stand(election, 'first');
    const second = await stand(env.dial().election('lost', 30), 'second');
    const lost = happens(first, 'error', 'the leader hears of its loss');
    const led = happens(second, 'elected', 'the second leads');
    const key = await first.getCampaignKey();
    const [kv] = (await env.client.get(key).exec()).kvs;
    await env.client.leaseClient.leaseRevoke({ ID: kv.lease });
    await led;
    assert.ok(await lost instanceof EtcdLeaseInvalidError);
    assert.equal(await election.leader(), 'second');
    await second.resign();
  },

  async 'a leader that is killed is followed'(env) {
    const kill = await hold('election', 'ended', 2, env.addr);
    const second = await stand(env.client.election('ended', 30), 'second');
    assert.equal(second.elected, false);
    assert.equal(await env.client.election('ended').leader(), 'a process');
    const led = happens(second, 'elected', 'the second leads');
    await kill();
    await led;
    await second.resign();
  },

  async 'who resigns while waiting is passed over'(env) {
    const election = env.client.election('passed', 30);
    const [first, second, third] = [await stand(election, '1'), await stand(election, '2'), await stand(election, '3')];
    await second.resign();
    assert.equal(await election.leader(), '1');
    assert.equal(third.elected, false);
    const led = happens(third, 'elected', 'the third leads');
    await first.resign();
    await led;
    assert.equal(await election.leader(), '3');
    await third.resign();
  },

  async 'nobody proclaims after the reign'(env) {
    const campaign = await stand(env.client.election('reign', 30), 'me');
    await env.client.delete().key(await campaign.getCampaignKey());
    await refused(campaign.proclaim('still me'), NotCampaigningError);
    await refused(campaign.proclaim('still me'), NotCampaigningError);
    assert.equal(await env.client.election('reign').leader(), undefined);
  },
};
