"""Watches a prefix and prints what it is told, a line for each event, until the key
PREFIX + "end" is written. Where the connection is lost it goes on behind what it has
seen:

    python3 follow.py HOST:PORT PREFIX
"""

import os
import sys

import etcd3
import grpc
import lib


def main(addr, prefix):
    client = lib.Env(addr).dial(grpc_options=[("grpc.max_reconnect_backoff_ms", 200)])
    start = client.put(prefix + "begin", "").header.revision + 1
    print("watching", flush=True)
    while True:
        grpc.channel_ready_future(client.channel).result(timeout=60)
        try:
            events, _ = client.watch_prefix(prefix, start_revision=start)
            for event in events:
                if event.key.decode() == prefix + "end":
                    os._exit(0)
                print("%s@%d" % (lib.short(event), event.mod_revision), flush=True)
                start = event.mod_revision + 1
        except etcd3.exceptions.ConnectionFailedError:
            continue


if __name__ == "__main__":
    main(*sys.argv[1:])
