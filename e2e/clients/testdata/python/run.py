"""Runs the cases of one topic against a server and prints a line of JSON for each:

    python3 run.py TOPIC HOST:PORT [AUTHORITY]

AUTHORITY is the file of a certificate, with which the server is spoken to by TLS. A
case is a function of the topic's module whose name begins with case_. The process ends
with an error when one failed.
"""

import importlib
import json
import os
import sys
import traceback

import lib


def main(topic, addr, ca_cert=None):
    failed = False
    module = importlib.import_module(topic)
    for name, run in list(vars(module).items()):
        if not name.startswith("case_"):
            continue
        result = {"case": name.removeprefix("case_").replace("_", " ")}
        try:
            lib.within(60, run, lib.Env(addr, ca_cert))
        except BaseException:
            result["error"] = traceback.format_exc()
            failed = True
        print(json.dumps(result), flush=True)
    # Threads that a case left behind must not keep the process.
    os._exit(1 if failed else 0)


if __name__ == "__main__":
    main(*sys.argv[1:])
