#!/usr/bin/env bash
# Makes NAME.db.gz, a snapshot of an etcd, and NAME.json.gz, its keys as etcdctl prints them, with
# the binary of that etcd and with etcdctl and etcdutl in the PATH:
#
#     ./make.sh PATH-OF-ETCD NAME
set -euo pipefail
dir=$(mktemp -d)
export ETCDCTL_ENDPOINTS=127.0.0.1:32379 ETCDCTL_API=3
"$1" --data-dir "$dir/etcd" --listen-client-urls http://$ETCDCTL_ENDPOINTS --advertise-client-urls http://$ETCDCTL_ENDPOINTS \
  --listen-peer-urls http://127.0.0.1:32380 --initial-advertise-peer-urls http://127.0.0.1:32380 --initial-cluster default=http://127.0.0.1:32380 \
  > "$dir/log" 2>&1 &
etcd=$!
trap 'kill $etcd; rm -rf "$dir"' EXIT
until etcdctl endpoint health 2> /dev/null; do sleep 0.2; done
lease=$(etcdctl lease grant 600 | cut -d' ' -f2)
etcdctl lease grant 7000
for i in $(seq 1 40); do
  etcdctl put b$i "value $i"; etcdctl put a$((i % 7)) "$i"; etcdctl del a$((i % 3))
done
head -c 30000 /dev/zero | etcdctl put large
etcdctl put held mine --lease="$lease"
etcdctl put gone soon
etcdctl txn <<< $'\nput t/1 x\nput t/2 y\ndel gone\n\n\n'
etcdctl compact 30
for i in $(seq 1 9); do etcdctl put again "$i"; done
etcdctl put back one && etcdctl del back && etcdctl put back two
etcdctl put last gone && etcdctl del last
etcdctl get --from-key "" -w json > "$2.json"
etcdctl role add reader && etcdctl role grant-permission reader read a z && etcdctl role grant-permission reader readwrite --prefix t/
etcdctl user add root:secret && etcdctl user grant-role root root
etcdctl user add alice:wonder && etcdctl user grant-role alice reader
etcdctl user add bob --no-password
etcdctl auth enable
etcdctl --user root:secret snapshot save "$2.db"
etcdutl snapshot status "$2.db" -w json
gzip -9nf "$2.db" "$2.json"
