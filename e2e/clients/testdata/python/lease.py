import time

import etcd3
import grpc
from lib import Tape, equal, four_shards, refused, true


def case_keys_go_with_their_lease(env):
    c = env.client
    tape = Tape(*c.watch_prefix("lease/keys/"))
    lease = c.lease(30)
    equal(lease.ttl, 30)
    c.put("lease/keys/a", "1", lease=lease)
    c.put("lease/keys/b", "2", lease=lease.id)
    c.put("lease/keys/free", "3")
    equal(c.get("lease/keys/a")[1].lease_id, lease.id)
    equal(lease.granted_ttl, 30)
    true(0 < lease.remaining_ttl <= 30, lease.remaining_ttl)
    equal(list(lease.keys), [b"lease/keys/a", b"lease/keys/b"])
    lease.revoke()
    events = tape.events(5)
    equal(sorted(e.key for e in events[3:]), [b"lease/keys/a", b"lease/keys/b"])
    true(all(isinstance(e, etcd3.events.DeleteEvent) for e in events[3:]), "the lease's keys are deleted")
    if not four_shards():
        equal([e.key for e in events[3:]], [b"lease/keys/a", b"lease/keys/b"])
        equal(events[3].mod_revision, events[4].mod_revision, "both in one revision")
    equal([meta.key for _, meta in c.get_prefix("lease/keys/")], [b"lease/keys/free"])
    equal(lease.remaining_ttl, -1)
    tape.cancel()


def case_refreshed_beyond_its_time_to_live(env):
    c, ttl = env.client, 2
    lease = c.lease(ttl)
    c.put("lease/alive", "", lease=lease)
    end = time.monotonic() + 2 * ttl
    while time.monotonic() < end:
        (answer,) = lease.refresh()
        equal((answer.ID, answer.TTL), (lease.id, ttl))
        equal(c.get("lease/alive")[0], b"")
    lease.revoke()
    equal(c.get("lease/alive")[0], None)


def case_ends_unrefreshed_and_not_before(env):
    c, ttl = env.client, 2
    tape = Tape(*c.watch("lease/ends"))
    asked = time.monotonic()
    lease = c.lease(ttl)
    c.put("lease/ends", "", lease=lease)
    equal(tape.next(2), ["put lease/ends=", "delete lease/ends="])
    lived = time.monotonic() - asked
    true(ttl <= lived < ttl + 5, "ended after %s s" % lived)
    (answer,) = lease.refresh()
    equal(answer.TTL, 0, "a lease that is gone")
    tape.cancel()


def case_ids(env):
    c = env.client
    equal(c.lease(30, lease_id=4711).id, 4711)
    refused(etcd3.exceptions.PreconditionFailedError, "", c.lease, 30, lease_id=4711)
    c.revoke_lease(4711)
    refused(grpc.StatusCode.NOT_FOUND, "etcdserver: requested lease not found", c.revoke_lease, 4711)
    refused(grpc.StatusCode.NOT_FOUND, "etcdserver: requested lease not found", c.put, "lease/gone", "v", lease=4711)
    equal(c.get("lease/gone")[0], None)


def case_a_key_moves_to_another_lease(env):
    c = env.client
    a, b = c.lease(30), c.lease(30)
    c.put("lease/moves", "1", lease=a)
    c.put("lease/moves", "2", lease=b)
    a.revoke()
    equal(c.get("lease/moves")[0], b"2")
    b.revoke()
    equal(c.get("lease/moves")[0], None)
