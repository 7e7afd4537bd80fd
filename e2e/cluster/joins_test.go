package cluster

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	mathrand "math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/latchkey-db/latchkey/e2e/faults"
	"github.com/latchkey-db/latchkey/e2e/harness"
)

// A node joins a cluster that was restored from a backup, which none of its logs holds, gets what the backup held, and
// votes.
func TestJoiningARestoredCluster(t *testing.T) {
	onShards(t, func(t *testing.T, shards int) {
		t.Helper()
		var lease clientv3.LeaseID
		const keys = 2000
		c := restored(t, shards, func(from *clientv3.Client) error {
			granted, err := from.Grant(t.Context(), 600)
			if err != nil {
				return err
			}
			lease = granted.ID
			if _, err = from.Put(t.Context(), "m/leased", "saved", clientv3.WithLease(lease)); err != nil {
				return err
			}
			return saved(t.Context(), from, keys)
		})
		c.joins(keys)
		for _, client := range c.clients {
			left, err := client.TimeToLive(c.bound(), lease, clientv3.WithAttachedKeys())
			if err != nil || left.TTL <= 0 || len(left.Keys) != 1 {
				t.Errorf("the lease that was saved: %+v, %v", left, err)
			}
		}
	})
}

// A node joins over TLS between nodes: with certificates that each makes for itself, and with those of an authority that
// all must show.
func TestJoiningOverTLS(t *testing.T) {
	cert, key := selfSigned(t)
	for name, args := range map[string][]string{
		"made by nodes": {"--peer-auto-tls"},
		"of an authority": {
			"--peer-cert-file", cert, "--peer-key-file", key, "--peer-trusted-ca-file", cert, "--peer-client-cert-auth",
		},
	} {
		t.Run(name, func(t *testing.T) {
			onShards(t, func(t *testing.T, shards int) {
				t.Helper()
				c := layNodes(t, shards, nil, faults.Options{Nodes: 2, Later: 1, Args: args, PeerTLS: true})
				ctx := c.bound()
				c.must(c.Start(ctx))
				const keys = 100
				c.must(saved(ctx, c.clients[0], keys))
				c.joins(keys)
			})
		})
	}
}

// A node that joins is killed again and again while it is sent what the others hold, which none of their logs holds: before it has got
// half of it, and while it makes it its own. It starts each time, and has everything at the end.
func TestJoinerIsKilled(t *testing.T) {
	onShards(t, func(t *testing.T, shards int) {
		t.Helper()
		const keys, large, size = 100, 32, 1 << 20
		c := restored(t, shards, func(from *clientv3.Client) error {
			random := mathrand.NewChaCha8([32]byte{1})
			for i := range large {
				value := make([]byte, size)
				_, _ = random.Read(value)
				if _, err := from.Put(t.Context(), fmt.Sprintf("%c/large/%d", 'a'+byte(i%26), i), string(value)); err != nil {
					return err
				}
			}
			return saved(t.Context(), from, keys)
		})
		n := c.Later[0]
		c.must(c.Add(c.bound(), c.clients[0], n, false))
		for _, eighths := range []int64{1, 4, 8, 11} {
			c.must(n.Launch())
			c.until("the new node's files to grow", func(context.Context) error {
				has, err := n.Stored()
				if err == nil && has < eighths*large*size/8 && !strings.Contains(n.Log(), "serving clients") {
					err = fmt.Errorf("%d bytes", has)
				}
				return err
			})
			has, err := n.Stored()
			t.Logf("killed with %d of %d bytes, %v", has, large*size, err)
			c.must(n.Kill())
		}
		c.joins(keys)
	})
}

// saved writes so many keys, over all shards.
func saved(ctx context.Context, c *clientv3.Client, keys int) error {
	for i := range keys {
		if _, err := c.Put(ctx, fmt.Sprintf("%c/%d", 'a'+byte(i%26), i), "saved"); err != nil {
			return err
		}
	}
	return nil
}

// restored returns a cluster of two nodes, and one that may join, that runs on a backup of what fill writes.
func restored(t *testing.T, shards int, fill func(*clientv3.Client) error) *cluster {
	t.Helper()
	from := harness.Serve(t)
	harness.Must(t, "fill", fill(from.C))
	backup := filepath.Join(t.TempDir(), "backup")
	save(t, from.C, backup)
	c := layNodes(t, shards, nil, faults.Options{Nodes: 2, Later: 1})
	ctx := c.bound()
	for _, n := range c.Nodes {
		c.must(n.Restore(ctx, backup, splitsFlag(shards)...))
	}
	c.must(c.Start(ctx))
	return c
}

// joins has the cluster's third node join, see so many keys, and vote: the first two can go, one at a time.
func (c *cluster) joins(keys int64) {
	c.t.Helper()
	ctx := c.bound()
	n := c.Later[0]
	c.must(c.Join(ctx, c.clients[0], n, false))
	c.Nodes = append(c.Nodes, n)
	third, err := faults.Dial(n.Client)
	c.must(err)
	c.t.Cleanup(func() { _ = third.Close() })
	got, err := third.Get(ctx, "a/", clientv3.WithRange("zz"), clientv3.WithSerializable())
	c.must(err)
	saved := int64(0)
	for _, kv := range got.Kvs {
		if string(kv.Value) == "saved" {
			saved++
		}
	}
	if saved < keys {
		c.t.Errorf("the new node has %d of %d keys", saved, keys)
	}
	c.until("the new node to vote in each shard", func(context.Context) error {
		votes := 0
		for _, n := range c.Nodes {
			votes += strings.Count(n.Log(), "step=promote")
		}
		if votes < 1+c.shards {
			return fmt.Errorf("it votes in %d", votes)
		}
		return nil
	})
	for _, old := range c.Nodes[:2] {
		c.must(old.Kill())
		c.until("writes without "+old.Name, func(ctx context.Context) error {
			for _, key := range inShards(c.shards, "without") {
				if _, err := third.Put(ctx, key, old.Name); err != nil {
					return err
				}
			}
			return nil
		})
		c.must(old.Launch())
		c.healthy()
	}
	each, done, err := faults.DialEach(c.Cluster)
	c.must(err)
	report := &faults.Report{}
	c.must(faults.Compare(ctx, report, each))
	c.must(done())
	for _, v := range report.Violations() {
		c.t.Error(v)
	}
}

// save writes a backup into a file.
func save(t *testing.T, c *clientv3.Client, path string) {
	t.Helper()
	r, err := c.Snapshot(t.Context())
	harness.Must(t, "snapshot", err)
	f, err := os.Create(path)
	harness.Must(t, path, err)
	_, err = io.Copy(f, r)
	harness.Must(t, "copy", err)
	harness.Must(t, "close", f.Close())
}

// selfSigned returns the files of a certificate of this host that is its own authority, and of its key.
func selfSigned(t *testing.T) (cert, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	harness.Must(t, "key", err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "nodes"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
		KeyUsage:    x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	harness.Must(t, "certificate", err)
	secret, err := x509.MarshalECPrivateKey(private)
	harness.Must(t, "key", err)
	write := func(name, kind string, der []byte) string {
		path := filepath.Join(t.TempDir(), name)
		harness.Must(t, path, os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600))
		return path
	}
	return write("cert.pem", "CERTIFICATE", der), write("key.pem", "EC PRIVATE KEY", secret)
}
