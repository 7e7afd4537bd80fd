"""What the cases share."""

import os
import queue
import threading

import etcd3
import grpc


class Env:
    """What a case works with: a client of its server, and more of them."""

    def __init__(self, addr, ca_cert=None):
        self.addr = addr
        self.ca_cert = ca_cert
        self.client = self.dial()

    def dial(self, **options):
        host, port = self.addr.split(":")
        return etcd3.client(host=host, port=int(port), ca_cert=self.ca_cert, **options)


def within(seconds, run, *args):
    """Returns what run returns, or fails when it takes longer."""
    done = queue.Queue()

    def call():
        try:
            done.put((run(*args), None))
        except BaseException as err:
            done.put((None, err))

    threading.Thread(target=call, daemon=True).start()
    try:
        value, err = done.get(timeout=seconds)
    except queue.Empty:
        raise AssertionError("not done within %d s" % seconds) from None
    if err is not None:
        raise err
    return value


def equal(got, want, what=""):
    if got != want:
        raise AssertionError("%s: got %r, want %r" % (what, got, want))


def true(holds, what):
    if not holds:
        raise AssertionError(what)


def refused(kind, text, run, *args, **kwargs):
    """Fails unless run is refused with an error of a kind, a class or a status code
    of gRPC, and a text."""
    try:
        got = run(*args, **kwargs)
    except grpc.RpcError as err:
        if isinstance(kind, grpc.StatusCode) and err.code() == kind and text in err.details():
            return
        raise
    except etcd3.Etcd3Exception as err:
        # The package drops the text of those that it knows.
        if isinstance(kind, type) and isinstance(err, kind):
            return
        raise
    raise AssertionError("not refused with %s %r: %r" % (kind, text, got))


class Tape:
    """Collects the events of a watch."""

    def __init__(self, events, cancel):
        self.cancel = cancel
        self.told = queue.Queue()

        def read():
            try:
                for event in events:
                    self.told.put(event)
            except BaseException as err:
                self.told.put(err)

        threading.Thread(target=read, daemon=True).start()

    def next(self, n):
        """Returns the next n events, each as a text."""
        return [short(e) for e in self.events(n)]

    def events(self, n):
        got = []
        for _ in range(n):
            try:
                event = self.told.get(timeout=20)
            except queue.Empty:
                raise AssertionError("no event after %s" % [short(e) for e in got]) from None
            if isinstance(event, BaseException):
                raise event
            got.append(event)
        return got


def short(event):
    kind = "delete" if isinstance(event, etcd3.events.DeleteEvent) else "put"
    return "%s %s=%s" % (kind, event.key.decode(), event.value.decode())


def acquire(client, name, ttl):
    """Waits for one of the package's locks. The watch is there before it asks, so
    that no release goes unseen; the package's own waiting does not work with the
    releases of tenacity from 7 on."""
    lock = client.lock(name, ttl=ttl)
    events, cancel = client.watch(lock.key)
    try:
        while not lock.acquire(timeout=0):
            next(events)
    finally:
        cancel()
    return lock


def follows(rev, after):
    """Says whether a revision may be the next one after another."""
    return rev == after + 1 or four_shards() and rev > after


def four_shards():
    """With four shards revisions may have gaps, and a lease ends at one for each shard."""
    return os.environ.get("LATCHKEY_E2E_SHARDS") == "4"


class Queue:
    """The lock of etcd's Go client, by which both wait in one queue."""

    def __init__(self, client, name, lease):
        self.client = client
        self.prefix = name + "/"
        self.key = "%s%x" % (self.prefix, lease.id)
        self.lease = lease
        self.token = 0

    def acquire(self):
        tx = self.client.transactions
        self.client.transaction(
            compare=[tx.create(self.key) == 0],
            success=[tx.put(self.key, "", lease=self.lease)],
            failure=[],
        )
        _, mine = self.client.get(self.key)
        self.token = mine.create_revision
        while True:
            waiting = self.client.get_prefix_response(self.prefix, sort_order="ascend", sort_target="create")
            before = [kv for kv in waiting.kvs if kv.create_revision < self.token]
            if not before:
                return
            events, cancel = self.client.watch(before[-1].key, start_revision=waiting.header.revision + 1)
            for event in events:
                if isinstance(event, etcd3.events.DeleteEvent):
                    break
            cancel()

    def guard(self):
        """The comparison that holds as long as the lock does."""
        return self.client.transactions.create(self.key) == self.token

    def release(self):
        self.client.delete(self.key)
