import threading

import grpc
from lib import equal, refused


def case_success_and_failure(env):
    c, tx = env.client, env.client.transactions

    def attempt():
        return c.transaction(
            compare=[tx.create("txn/k") == 0],
            success=[tx.put("txn/k", "mine")],
            failure=[tx.get("txn/k")],
        )

    won, responses = attempt()
    equal((won, len(responses)), (True, 1))
    lost, ((found,),) = attempt()
    equal((lost, found[0], found[1].version), (False, b"mine", 1))


def case_every_comparison(env):
    c, tx = env.client, env.client.transactions
    c.put("txn/cmp", "a")
    c.put("txn/cmp", "b")
    _, meta = c.get("txn/cmp")
    sides = (
        (tx.value, ("a", "b", "c")),
        (tx.version, (1, 2, 3)),
        (tx.create, (meta.create_revision - 1, meta.create_revision, meta.create_revision + 1)),
        (tx.mod, (meta.mod_revision - 1, meta.mod_revision, meta.mod_revision + 1)),
    )
    for column, (low, same, high) in sides:
        for compare, want in (
            (column("txn/cmp") == same, True), (column("txn/cmp") == low, False),
            (column("txn/cmp") != same, False), (column("txn/cmp") != high, True),
            (column("txn/cmp") > low, True), (column("txn/cmp") > same, False),
            (column("txn/cmp") < high, True), (column("txn/cmp") < same, False),
        ):
            text = repr(compare)
            equal(c.transaction(compare=[compare], success=[], failure=[])[0], want, text)


def case_comparison_of_a_range(env):
    c, tx = env.client, env.client.transactions
    for key in "abc":
        c.put("txn/range/" + key, "same")

    def all_same():
        return c.transaction(compare=[tx.value("txn/range/", "txn/range0") == "same"], success=[], failure=[])[0]

    equal(all_same(), True)
    c.put("txn/range/b", "other")
    equal(all_same(), False)


def case_operations_share_a_revision(env):
    c, tx = env.client, env.client.transactions
    c.put("txn/many/old", "old")
    done, responses = c.transaction(
        compare=[tx.version("txn/many/old") > 0, tx.value("txn/many/old") == "old"],
        success=[
            tx.put("txn/many/1", "1"), tx.put("txn/many/2", "2", prev_kv=True),
            tx.delete("txn/many/old", prev_kv=True), tx.get("txn/many/", "txn/many0"),
        ],
        failure=[],
    )
    equal(done, True)
    equal(responses[2].response_delete_range.prev_kvs[0].value, b"old")
    kvs = responses[3]
    equal([(value, meta.key) for value, meta in kvs], [(b"1", b"txn/many/1"), (b"2", b"txn/many/2")])
    equal(len({meta.mod_revision for _, meta in kvs} | {kvs[0][1].response_header.revision}), 1, "revisions")


def case_transaction_in_a_transaction(env):
    c, tx = env.client, env.client.transactions
    inner = tx.txn(
        compare=[tx.create("txn/inner") == 0],
        success=[tx.put("txn/inner", "then")],
        failure=[tx.put("txn/inner", "else")],
    )
    for want in (b"then", b"else"):
        done, (response,) = c.transaction(compare=[], success=[inner], failure=[])
        equal((done, response.response_txn.succeeded), (True, want == b"then"))
        equal(c.get("txn/inner")[0], want)


def case_what_a_transaction_refuses(env):
    c, tx = env.client, env.client.transactions
    refused(grpc.StatusCode.INVALID_ARGUMENT, "etcdserver: duplicate key given in txn request", c.transaction,
            compare=[], success=[tx.put("txn/dup", "1"), tx.put("txn/dup", "2")], failure=[])
    refused(grpc.StatusCode.INVALID_ARGUMENT, "etcdserver: too many operations in txn request", c.transaction,
            compare=[], success=[tx.put("txn/dup%d" % i, "") for i in range(129)], failure=[])
    equal(list(c.get_prefix("txn/dup")), [])


def case_counting_by_compare_and_swap(env):
    writers, rounds = 6, 15
    env.client.put("txn/counter", "0")
    done = []

    def count():
        c = env.dial()
        for _ in range(rounds):
            while True:
                n = c.get("txn/counter")[0]
                if c.replace("txn/counter", n, str(int(n) + 1)):
                    done.append(n)
                    break

    threads = [threading.Thread(target=count) for _ in range(writers)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    value, meta = env.client.get("txn/counter")
    equal((int(value), meta.version, len(set(done))), (writers * rounds, writers * rounds + 1, writers * rounds))
