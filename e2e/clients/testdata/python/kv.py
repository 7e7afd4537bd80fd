import io

import etcd3
import grpc
from lib import equal, follows, refused, true


def case_put_get_delete(env):
    c = env.client
    equal(c.get("kv/k"), (None, None))
    equal(c.delete("kv/k"), False)
    rev = c.put("kv/k", "v").header.revision
    value, meta = c.get("kv/k")
    equal(value, b"v")
    equal((meta.key, meta.create_revision, meta.mod_revision, meta.version, meta.lease_id), (b"kv/k", rev, rev, 1, 0))
    again = c.put("kv/k", "w", prev_kv=True)
    equal(again.prev_kv.value, b"v")
    true(follows(again.header.revision, rev), "one revision after the other")
    gone = c.delete("kv/k", prev_kv=True, return_response=True)
    equal((gone.deleted, gone.prev_kvs[0].value, gone.prev_kvs[0].version), (1, b"w", 2))
    equal(c.get("kv/k"), (None, None))


def case_any_byte(env):
    c = env.client
    value = bytes(range(256))
    c.put(b"kv/\x00\xff", value)
    equal(c.get(b"kv/\x00\xff")[0], value)
    c.put("kv/empty", "")
    equal(c.get("kv/empty")[0], b"")


def case_prefixes(env):
    c = env.client
    for i in range(25):
        c.put("kv/prefix/%02d" % i, str(i))
    c.put("kv/prefix", "outside")
    got = [(meta.key.decode(), value.decode()) for value, meta in c.get_prefix("kv/prefix/")]
    equal(got, [("kv/prefix/%02d" % i, str(i)) for i in range(25)])
    keys = [value for value, _ in c.get_prefix("kv/prefix/", keys_only=True)]
    equal(keys, [b""] * 25)
    equal(c.delete_prefix("kv/prefix/1").deleted, 10)
    equal(len(list(c.get_prefix("kv/prefix/"))), 15)
    ranged = [meta.key for _, meta in c.get_range("kv/prefix/05", "kv/prefix/22")]
    equal(ranged, [b"kv/prefix/%02d" % i for i in (5, 6, 7, 8, 9, 20, 21)])
    everything = [meta.key for _, meta in c.get_all()]
    equal(everything, sorted(everything))
    true(b"kv/prefix" in everything, "get_all leaves out a key")


def case_sorting(env):
    c = env.client
    for key, value in (("a", "3"), ("b", "1"), ("c", "2"), ("a", "3"), ("a", "3"), ("b", "1")):
        c.put("kv/sort/" + key, value)
    for target, want in (("key", "abc"), ("version", "cba"), ("create", "abc"), ("mod", "cab"), ("value", "bca")):
        for order, keys in (("ascend", want), ("descend", want[::-1])):
            got = c.get_prefix("kv/sort/", sort_order=order, sort_target=target)
            equal("".join(meta.key.decode()[-1] for _, meta in got), keys, "%s %s" % (target, order))


def case_replace_and_put_once(env):
    c = env.client
    equal(c.put_if_not_exists("kv/once", "1"), True)
    equal(c.put_if_not_exists("kv/once", "2"), False)
    equal(c.replace("kv/once", "2", "3"), False)
    equal(c.replace("kv/once", "1", "3"), True)
    equal(c.get("kv/once")[0], b"3")


def case_limits(env):
    c = env.client
    large = "x" * (1 << 20)
    c.put("kv/large", large)
    equal(len(c.get("kv/large")[0]), len(large))
    refused(grpc.StatusCode.INVALID_ARGUMENT, "etcdserver: request is too large", c.put, "kv/large", "y" * 1_700_000)
    refused(grpc.StatusCode.INVALID_ARGUMENT, "etcdserver: key is not provided", c.put, "", "v")
    equal(c.get("kv/large")[0][:1], b"x")


def case_compaction(env):
    c = env.client
    first = c.put("kv/compact", "1").header.revision
    head = c.put("kv/compact", "2").header.revision
    c.compact(head, physical=True)
    refused(grpc.StatusCode.OUT_OF_RANGE, "etcdserver: mvcc: required revision has been compacted", c.compact, first)
    refused(grpc.StatusCode.OUT_OF_RANGE, "etcdserver: mvcc: required revision is a future revision", c.compact, head + 1000)
    equal(c.get("kv/compact")[0], b"2")
    c.defragment()
    equal(c.get("kv/compact")[0], b"2")


def case_members_and_status(env):
    c = env.client
    (member,) = c.members
    equal(list(member.client_urls), ["http://" + env.addr])
    status = c.status()
    equal(status.leader.id, member.id)
    true(status.version.startswith("3."), status.version)
    true(status.db_size > 0 and status.raft_term > 0 and status.raft_index > 0, vars(status))
    equal(list(c.list_alarms()), [])
    equal(list(member.active_alarms), [])


def case_alarm(env):
    c = env.client
    (member,) = c.members
    equal([a.member_id for a in c.create_alarm(member.id)], [member.id])
    refused(grpc.StatusCode.RESOURCE_EXHAUSTED, "etcdserver: mvcc: database space exceeded", c.put, "kv/full", "v")
    equal(c.get("kv/full")[0], None)
    equal([a.member_id for a in c.list_alarms()], [member.id])
    equal([a.member_id for a in member.active_alarms], [member.id])
    equal([a.member_id for a in c.disarm_alarm(member.id)], [member.id])
    equal(list(c.list_alarms()), [])
    c.put("kv/full", "v")


def case_snapshot_and_hash(env):
    c = env.client
    c.put("kv/snapshot", "v" * 5000)
    taken = io.BytesIO()
    c.snapshot(taken)
    true(taken.tell() > 1000, "a snapshot of %d bytes" % taken.tell())
    before = c.hash()
    equal(c.hash(), before)
    c.put("kv/snapshot", "w")
    true(c.hash() != before, "a write leaves the hash as it was")


def case_a_closed_client_says_so(env):
    c = env.dial()
    c.put("kv/closed", "v")
    c.close()
    try:
        c.get("kv/closed")
    except (ValueError, grpc.RpcError, etcd3.Etcd3Exception):
        return
    raise AssertionError("a closed client answers")
