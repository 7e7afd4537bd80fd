package node

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"log/slog"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/transport"

	"github.com/latchkey-db/latchkey/internal/config"
)

// authority signs certificates.
type authority struct {
	t    *testing.T
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
	next int64
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func newAuthority(t *testing.T, name string) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	check(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign, SubjectKeyId: []byte(name),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	check(t, err)
	cert, err := x509.ParseCertificate(der)
	check(t, err)
	return &authority{t, key, cert, 2}
}

// issue signs a certificate that is valid for the time, counted from an hour ago.
func (a *authority) issue(name string, valid time.Duration) tls.Certificate {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	check(a.t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(a.next), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name + ".example"},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore:   time.Now().Add(-time.Hour), NotAfter: time.Now().Add(valid - time.Hour),
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	a.next++
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, key.Public(), a.key)
	check(a.t, err)
	leaf, err := x509.ParseCertificate(der)
	check(a.t, err)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}
}

// revoke writes the list of these certificates to a file.
func (a *authority) revoke(file string, certs ...tls.Certificate) {
	a.t.Helper()
	list := &x509.RevocationList{Number: big.NewInt(a.next), ThisUpdate: time.Now(), NextUpdate: time.Now().Add(time.Hour)}
	for _, c := range certs {
		list.RevokedCertificateEntries = append(list.RevokedCertificateEntries,
			x509.RevocationListEntry{SerialNumber: c.Leaf.SerialNumber, RevocationTime: time.Now()})
	}
	der, err := x509.CreateRevocationList(rand.Reader, list, a.cert, a.key)
	check(a.t, err)
	check(a.t, os.WriteFile(file, der, 0o600))
}

func (a *authority) pool() *x509.CertPool {
	p := x509.NewCertPool()
	p.AddCert(a.cert)
	return p
}

func writePEM(t *testing.T, file, kind string, der []byte) {
	t.Helper()
	write(t, file, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}))
}

// written counts the writes of all files.
var written atomic.Int64

// write writes a file whose time of change differs from any before, however short
// ago that was.
func write(t *testing.T, file string, content []byte) {
	t.Helper()
	check(t, os.WriteFile(file, content, 0o600))
	at := time.Unix(written.Add(1), 0)
	check(t, os.Chtimes(file, at, at))
}

// writePair writes a certificate and its key to <name>.pem and <name>.key.
func writePair(t *testing.T, name string, c tls.Certificate) {
	t.Helper()
	key, ok := c.PrivateKey.(*ecdsa.PrivateKey)
	if !ok {
		t.Fatal("not an ECDSA key")
	}
	der, err := x509.MarshalECPrivateKey(key)
	check(t, err)
	writePEM(t, name+".key", "EC PRIVATE KEY", der)
	writePEM(t, name+".pem", "CERTIFICATE", c.Certificate[0])
}

// greeter greets everybody whose handshake is good.
type greeter struct {
	t    *testing.T
	addr string
	log  *bytes.Buffer
}

// greet serves with what the settings say, until the test ends.
func greet(t *testing.T, settings config.TLS) *greeter {
	t.Helper()
	g := &greeter{t: t, log: &bytes.Buffer{}}
	info, err := tlsInfo(&settings, t.TempDir(), []string{"localhost:1", "127.0.0.1:1"}, slog.New(slog.DiscardHandler))
	check(t, err)
	serving, err := newCertificates(info, slog.New(slog.NewTextHandler(g.log, nil))).serving()
	check(t, err)
	l, err := tls.Listen("tcp", "127.0.0.1:0", serving)
	check(t, err)
	g.addr = l.Addr().String()
	done := make(chan struct{})
	t.Cleanup(func() { l.Close(); <-done })
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(c, "hello") // makes the handshake, or fails with it
			c.Close()
		}
	}()
	return g
}

// call returns the server's certificate, or why there was no greeting.
func (g *greeter) call(client *tls.Config) (tls.ConnectionState, error) {
	g.t.Helper()
	raw, err := net.DialTimeout("tcp", g.addr, 10*time.Second)
	check(g.t, err)
	check(g.t, raw.SetDeadline(time.Now().Add(time.Minute)))
	defer raw.Close()
	c := tls.Client(raw, client)
	_, err = io.ReadFull(c, make([]byte, len("hello")))
	return c.ConnectionState(), err
}

func (g *greeter) want(what string, client *tls.Config, fault string) {
	g.t.Helper()
	_, err := g.call(client)
	if fault == "" && err != nil || fault != "" && (err == nil || !strings.Contains(err.Error(), fault)) {
		g.t.Errorf("%s: %v, want %q", what, err, fault)
	}
}

// files are the authorities and certificates of a test.
type files struct {
	dir       string
	ca, other *authority
	server    tls.Certificate
	settings  config.TLS
}

func newFiles(t *testing.T) *files {
	t.Helper()
	f := &files{dir: t.TempDir(), ca: newAuthority(t, "ca"), other: newAuthority(t, "other")}
	f.server = f.ca.issue("server", 2*time.Hour)
	writePair(t, f.path("server"), f.server)
	writePEM(t, f.path("ca.pem"), "CERTIFICATE", f.ca.cert.Raw)
	f.settings = config.TLS{CertFile: f.path("server.pem"), KeyFile: f.path("server.key"), TrustedCAFile: f.path("ca.pem")}
	return f
}

func (f *files) path(name string) string { return filepath.Join(f.dir, name) }

// client returns a client that trusts the authority and shows the certificates.
func (f *files) client(certs ...tls.Certificate) *tls.Config {
	return &tls.Config{RootCAs: f.ca.pool(), ServerName: "server.example", Certificates: certs}
}

func TestClientCertificates(t *testing.T) {
	f := newFiles(t)
	g := greet(t, f.settings)
	good := f.ca.issue("ann", 2*time.Hour)
	g.want("good", f.client(good), "")
	g.want("none", f.client(), "certificate required")
	g.want("expired", f.client(f.ca.issue("ann", time.Minute)), "expired certificate")
	g.want("of another authority", f.client(f.other.issue("ann", 2*time.Hour)), "certificate")

	stranger := f.client(good)
	stranger.RootCAs = f.other.pool()
	g.want("server of another authority", stranger, "unknown authority")

	open := f.settings
	open.TrustedCAFile = ""
	greet(t, open).want("nobody asks", f.client(), "")
}

func TestAllowedNames(t *testing.T) {
	f := newFiles(t)
	ann, bob := f.ca.issue("ann", 2*time.Hour), f.ca.issue("bob", 2*time.Hour)
	names, hosts := f.settings, f.settings
	names.AllowedCNs = []string{"eve", "ann"}
	hosts.AllowedHostnames = []string{"eve.example", "ann.example"}
	for _, settings := range []config.TLS{names, hosts} {
		g := greet(t, settings)
		g.want("ann", f.client(ann), "")
		g.want("bob", f.client(bob), "bad certificate")
	}
}

func TestRevocation(t *testing.T) {
	f := newFiles(t)
	ann, bob := f.ca.issue("ann", 2*time.Hour), f.ca.issue("bob", 2*time.Hour)
	settings := f.settings
	settings.CRLFile = f.path("crl")
	if _, err := newCertificates(mustInfo(t, settings), slog.New(slog.DiscardHandler)).serving(); err == nil {
		t.Error("served without the list")
	}
	f.ca.revoke(settings.CRLFile, bob)
	g := greet(t, settings)
	// A session that could be resumed does not help a certificate that is revoked.
	client := f.client(ann)
	client.ClientSessionCache = tls.NewLRUClientSessionCache(1)
	g.want("ann", client, "")
	g.want("bob", f.client(bob), "bad certificate")
	f.ca.revoke(settings.CRLFile, ann)
	g.want("ann, revoked", client, "bad certificate")
	g.want("bob, no longer revoked", f.client(bob), "")
	check(t, os.WriteFile(settings.CRLFile, []byte("x"), 0o600))
	g.want("without a list", f.client(bob), "bad certificate")
}

func mustInfo(t *testing.T, settings config.TLS) transport.TLSInfo {
	t.Helper()
	info, err := tlsInfo(&settings, t.TempDir(), nil, slog.New(slog.DiscardHandler))
	check(t, err)
	return info
}

func TestVersions(t *testing.T) {
	f := newFiles(t)
	client := func(low, high uint16, suites ...uint16) *tls.Config {
		c := f.client(f.ca.issue("ann", 2*time.Hour))
		c.MinVersion, c.MaxVersion, c.CipherSuites = low, high, suites
		return c
	}
	const fault = "protocol version"
	g := greet(t, f.settings)
	g.want("TLS 1.1 by default", client(tls.VersionTLS11, tls.VersionTLS11), fault)
	g.want("TLS 1.2 by default", client(tls.VersionTLS12, tls.VersionTLS12), "")
	newest := f.settings
	newest.MinVersion = tls.VersionTLS13
	g = greet(t, newest)
	g.want("TLS 1.2 below the least", client(tls.VersionTLS12, tls.VersionTLS12), fault)
	g.want("TLS 1.3", client(tls.VersionTLS13, tls.VersionTLS13), "")
	oldest := f.settings
	oldest.MaxVersion = tls.VersionTLS12
	oldest.CipherSuites = []uint16{tls.TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384}
	g = greet(t, oldest)
	g.want("TLS 1.3 above the most", client(tls.VersionTLS13, tls.VersionTLS13), fault)
	g.want("another suite", client(0, 0, tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256), "handshake failure")
	state, err := g.call(client(0, 0))
	if err != nil || state.CipherSuite != oldest.CipherSuites[0] {
		t.Errorf("suite %s, %v", tls.CipherSuiteName(state.CipherSuite), err)
	}
}

// TestReload checks that changed files are used from the next handshake on, and
// that broken ones are not.
func TestReload(t *testing.T) {
	f := newFiles(t)
	g := greet(t, f.settings)
	ann, stranger := f.ca.issue("ann", 2*time.Hour), f.other.issue("ann", 2*time.Hour)
	wantSerial := func(want tls.Certificate) {
		t.Helper()
		state, err := g.call(f.client(ann))
		if err != nil || state.PeerCertificates[0].SerialNumber.Cmp(want.Leaf.SerialNumber) != 0 {
			t.Errorf("served with %v, %v, want %v", state.PeerCertificates, err, want.Leaf.SerialNumber)
		}
	}
	wantSerial(f.server)
	next := f.ca.issue("server", 2*time.Hour)
	writePair(t, f.path("server"), next)
	wantSerial(next)

	write(t, f.path("server.key"), []byte("broken, for now"))
	wantSerial(next)
	wantSerial(next)
	if n := strings.Count(g.log.String(), "can't be used"); n != 1 {
		t.Errorf("%d warnings of broken files:\n%s", n, g.log)
	}
	last := f.ca.issue("server", 2*time.Hour)
	writePair(t, f.path("server"), last)
	wantSerial(last)

	g.want("a stranger", f.client(stranger), "certificate")
	both := append(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: f.ca.cert.Raw}),
		pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: f.other.cert.Raw})...)
	write(t, f.path("ca.pem"), both)
	g.want("a stranger no more", f.client(stranger), "")
}

func TestAutoTLS(t *testing.T) {
	g := greet(t, config.TLS{Auto: true, SelfSignedYears: 2})
	state, err := g.call(&tls.Config{InsecureSkipVerify: true}) //nolint:gosec // the certificate is looked at below
	check(t, err)
	cert := state.PeerCertificates[0]
	if err := cert.VerifyHostname("localhost"); err != nil {
		t.Error(err)
	}
	if err := cert.VerifyHostname("127.0.0.1"); err != nil {
		t.Error(err)
	}
	if left := time.Until(cert.NotAfter); left < 2*364*24*time.Hour || left > 2*366*24*time.Hour {
		t.Errorf("valid for %v", left)
	}
}

func TestTLSFaults(t *testing.T) {
	f := newFiles(t)
	for name, spoil := range map[string]func(*config.TLS){
		"no key":       func(s *config.TLS) { s.KeyFile = f.path("none") },
		"no authority": func(s *config.TLS) { s.TrustedCAFile = f.path("none") },
		"no list":      func(s *config.TLS) { s.CRLFile = f.path("none") },
	} {
		settings := f.settings
		spoil(&settings)
		if _, err := newCertificates(mustInfo(t, settings), slog.New(slog.DiscardHandler)).serving(); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
