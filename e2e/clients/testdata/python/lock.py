import threading
import time

import etcd3
from lib import Queue, acquire, equal, true, within


def case_has_one_holder(env):
    a, b = env.client.lock("one", ttl=30), env.dial().lock("one", ttl=30)
    equal(a.acquire(timeout=0), True)
    equal(b.acquire(timeout=0), False)
    equal((a.is_acquired(), b.is_acquired()), (True, False))
    equal(b.release(), False, "released by one that does not hold it")
    token = env.client.get(a.key)[1].create_revision
    (answer,) = a.refresh()
    equal(answer.TTL, 30)
    equal(a.release(), True)
    equal(b.acquire(timeout=0), True)
    true(env.client.get(b.key)[1].create_revision > token, "tokens grow")
    b.release()


def case_with_statement(env):
    with env.client.lock("with", ttl=30) as lock:
        equal(lock.is_acquired(), True)
        equal(env.dial().lock("with").acquire(timeout=0), False)
    equal(lock.is_acquired(), False)


def case_free_when_its_holder_does_not_refresh(env):
    ttl = 2
    lock = env.client.lock("dead", ttl=ttl)
    asked = time.monotonic()
    equal(lock.acquire(timeout=0), True)
    next_one = acquire(env.dial(), "dead", 30)
    waited = time.monotonic() - asked
    true(ttl <= waited < ttl + 5, "free after %s s" % waited)
    equal((lock.is_acquired(), lock.release()), (False, False))
    equal(next_one.is_acquired(), True)
    next_one.release()


def case_kept_while_it_is_refreshed(env):
    ttl = 2
    lock = env.client.lock("kept", ttl=ttl)
    equal(lock.acquire(timeout=0), True)
    got = []
    waiter = threading.Thread(target=lambda: got.append(acquire(env.dial(), "kept", 30)))
    waiter.start()
    end = time.monotonic() + 2 * ttl
    while time.monotonic() < end:
        lock.refresh()
        equal(lock.is_acquired(), True)
    equal(got, [])
    lock.release()
    waiter.join(20)
    equal(len(got), 1)
    got[0].release()


def case_free_when_its_lease_is_revoked(env):
    lock = env.client.lock("revoked", ttl=30)
    equal(lock.acquire(timeout=0), True)
    lock.lease.revoke()
    other = within(20, acquire, env.dial(), "revoked", 30)
    equal((lock.is_acquired(), other.is_acquired()), (False, True))
    other.release()


def case_a_late_holder_is_fenced(env):
    """Who lost the lock without knowing can write nothing under its guard."""
    c = env.client
    late, held = Queue(c, "fenced", c.lease(30)), Queue(env.dial(), "fenced", c.lease(30))
    late.acquire()
    late.lease.revoke()
    held.acquire()
    true(held.token > late.token, "tokens grow")
    for lock, want in ((late, False), (held, True)):
        done, _ = c.transaction(
            compare=[lock.guard()], success=[c.transactions.put("fenced-by", str(lock.token))], failure=[])
        equal(done, want)
    equal(c.get("fenced-by")[0], str(held.token).encode())
    held.release()


def case_a_queue_keeps_its_order(env):
    order, queues, threads = [], [], []
    for i in range(6):
        c = env.dial()
        queues.append(Queue(c, "queue", c.lease(30)))
    queues[0].acquire()

    def wait(i):
        queues[i].acquire()
        order.append(i)
        queues[i].release()

    for i in range(1, 6):
        threads.append(threading.Thread(target=wait, args=(i,)))
        threads[-1].start()
        while len(list(env.client.get_prefix("queue/"))) <= i:
            true(threads[-1].is_alive(), "waiter %d ended" % i)
    # One in the middle dies, which hands nothing on.
    queues[3].lease.revoke()
    equal(order, [])
    queues[0].release()
    for t in threads:
        t.join(20)
    equal([i for i in order if i != 3], [1, 2, 4, 5])


def case_unlocked_keys_are_gone(env):
    equal(list(env.client.get_prefix(etcd3.Lock.lock_prefix)), [])
    equal(list(env.client.get_prefix("queue/")), [])
