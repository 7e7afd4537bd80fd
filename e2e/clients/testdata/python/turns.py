"""Takes turns with other processes in holding a lock, and prints each time it held it:

    python3 turns.py HOST:PORT KIND NAME ROUNDS

KIND is queue for the lock that clients in Go share, counted by transactions that only
the holder can make, or lock for the package's own, whose count nothing but the lock
guards.
"""

import json
import sys
import time

import lib


def held(lock, token, acquired):
    released = time.time_ns()
    lock.release()
    print(json.dumps({"lock": 0, "token": token, "acquired": acquired, "released": released}), flush=True)


def queue_turns(client, name, rounds):
    lock = lib.Queue(client, name, client.lease(60))
    tx = client.transactions
    for _ in range(rounds):
        lock.acquire()
        acquired = time.time_ns()
        n, _ = client.get("count")
        done, _ = client.transaction(
            compare=[lock.guard(), tx.value("count") == n], success=[tx.put("count", str(int(n) + 1))], failure=[])
        lib.equal(done, True, "counted by the holder")
        lock.lease.refresh()
        held(lock, lock.token, acquired)


def lock_turns(client, name, rounds):
    for _ in range(rounds):
        lock = lib.acquire(client, name, 60)
        acquired = time.time_ns()
        value, meta = client.get(lock.key)
        lib.equal(value, lock.uuid, "the holder")
        n, _ = client.get("count")
        client.put("count", str(int(n) + 1))
        held(lock, meta.create_revision, acquired)


def main(addr, kind, name, rounds):
    turns = {"queue": queue_turns, "lock": lock_turns}[kind]
    turns(lib.Env(addr).client, name, int(rounds))


if __name__ == "__main__":
    main(*sys.argv[1:])
