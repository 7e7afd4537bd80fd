import queue
import threading

import etcd3
from lib import Tape, equal, follows, short, true


def case_events_are_complete_and_in_order(env):
    writers, rounds = 4, 50
    tape = Tape(*env.client.watch_prefix("watch/all/"))

    def write(w):
        c = env.dial()
        for i in range(1, rounds + 1):
            if i % 10 == 0:
                c.delete("watch/all/%d" % w)
            else:
                c.put("watch/all/%d" % w, str(i))

    threads = [threading.Thread(target=write, args=(w,)) for w in range(writers)]
    for t in threads:
        t.start()
    events = tape.events(writers * rounds)
    for t in threads:
        t.join()
    revisions = [e.mod_revision for e in events]
    for rev, after in zip(revisions[1:], revisions):
        true(follows(rev, after), "%d comes after %d" % (rev, after))
    for w in range(writers):
        own = [short(e) for e in events if e.key == b"watch/all/%d" % w]
        equal(own, [
            "delete watch/all/%d=" % w if i % 10 == 0 else "put watch/all/%d=%d" % (w, i) for i in range(1, rounds + 1)
        ])
    tape.cancel()


def case_from_the_past_with_previous_values(env):
    c = env.client
    first = c.put("watch/past", "1").header.revision
    c.put("watch/past", "2")
    c.delete("watch/past")
    tape = Tape(*c.watch("watch/past", start_revision=first, prev_kv=True))
    c.put("watch/past", "3")
    events = tape.events(4)
    equal([short(e) for e in events], ["put watch/past=1", "put watch/past=2", "delete watch/past=", "put watch/past=3"])
    equal([e.prev_value for e in events], [b"", b"1", b"2", b""])
    tape.cancel()


def case_callbacks_until_cancelled(env):
    c = env.client
    called = queue.Queue()
    watch = c.add_watch_callback("watch/callback", called.put)
    other = c.add_watch_prefix_callback("watch/call", called.put)
    c.put("watch/callback", "1")
    answers = [called.get(timeout=20) for _ in range(2)]
    equal([short(e) for a in answers for e in a.events], ["put watch/callback=1"] * 2)
    equal(len({a.header.revision for a in answers}), 1)
    c.cancel_watch(watch)
    c.put("watch/callback", "2")
    equal([short(e) for e in called.get(timeout=20).events], ["put watch/callback=2"])
    c.cancel_watch(other)
    # A watch made after the write proves that the cancelled ones said nothing.
    tape = Tape(*c.watch("watch/callback"))
    c.put("watch/callback", "3")
    equal(tape.next(1), ["put watch/callback=3"])
    tape.cancel()
    true(called.empty(), "a cancelled watch goes on")


def case_once(env):
    c = env.client
    writer = env.dial()
    stop = threading.Event()

    def write():
        while not stop.is_set():
            writer.put("watch/once/k", "v")

    thread = threading.Thread(target=write)
    thread.start()
    try:
        equal(short(c.watch_once("watch/once/k", timeout=20)), "put watch/once/k=v")
        equal(short(c.watch_prefix_once("watch/once/", timeout=20)), "put watch/once/k=v")
    finally:
        stop.set()
        thread.join()
    try:
        c.watch_once("watch/never", timeout=0.2)
    except etcd3.exceptions.WatchTimedOut:
        return
    raise AssertionError("an event of a key that nobody wrote")


def case_a_transaction_comes_as_one(env):
    c, tx = env.client, env.client.transactions
    responses, cancel = c.watch_prefix_response("watch/txn/")
    c.transaction(compare=[], success=[tx.put("watch/txn/a", "1"), tx.put("watch/txn/b", "2")], failure=[])
    answer = next(responses)
    equal([short(e) for e in answer.events], ["put watch/txn/a=1", "put watch/txn/b=2"])
    equal({e.mod_revision for e in answer.events}, {answer.header.revision})
    cancel()


def case_many_watches_on_one_stream(env):
    c = env.client
    tapes = [Tape(*c.watch("watch/many/%d" % i)) for i in range(40)]
    for tape in tapes[::4]:
        tape.cancel()
    for i in range(40):
        c.put("watch/many/%d" % i, "v")
    for i, tape in enumerate(tapes):
        if i % 4:
            equal(tape.next(1), ["put watch/many/%d=v" % i])
            tape.cancel()
        true(tape.told.empty(), "watch %d tells of more" % i)


def case_what_is_compacted(env):
    c = env.client
    first = c.put("watch/gone", "1").header.revision
    head = c.put("watch/gone", "2").header.revision
    c.compact(head)
    events, _ = c.watch("watch/gone", start_revision=first)
    try:
        got = next(events)
    except etcd3.exceptions.RevisionCompactedError as err:
        equal(err.compacted_revision, head)
    else:
        raise AssertionError("compacted, and yet %s" % short(got))
    tape = Tape(*c.watch("watch/gone", start_revision=head))
    equal(tape.next(1), ["put watch/gone=2"])
    tape.cancel()
