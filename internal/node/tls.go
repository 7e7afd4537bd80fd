package node

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/tlsutil"
	"go.etcd.io/etcd/client/pkg/v3/transport"
	"go.etcd.io/etcd/client/pkg/v3/types"

	"github.com/latchkey-db/latchkey/internal/config"
	"github.com/latchkey-db/latchkey/internal/etcdlog"
)

// openTLS makes ready what clients are served with over TLS, where any are.
func (n *Node) openTLS(o *Options) error {
	var hosts []string
	for _, urls := range []types.URLs{o.Config.ListenClientURLs, o.Config.ListenHTTPURLs, o.Config.ListenMetricsURLs} {
		for _, u := range urls {
			hosts = append(hosts, u.Host)
		}
	}
	for _, l := range n.listeners {
		if !l.secure {
			continue
		}
		info, err := tlsInfo(&o.Config.ClientTLS, filepath.Join(o.Config.DataDir, "fixtures", "client"), hosts, o.Log)
		if err != nil {
			return err
		}
		n.tls, err = newCertificates(info, o.Log).serving()
		return err
	}
	return nil
}

// tlsInfo returns the settings of TLS as etcd's library has them, with a
// certificate in dir for hosts where one is to be made.
func tlsInfo(t *config.TLS, dir string, hosts []string, log *slog.Logger) (transport.TLSInfo, error) {
	info := transport.TLSInfo{
		CertFile: t.CertFile, KeyFile: t.KeyFile, TrustedCAFile: t.TrustedCAFile, ClientCertAuth: t.ClientCertAuth,
		CRLFile: t.CRLFile, AllowedCNs: t.AllowedCNs, AllowedHostnames: t.AllowedHostnames,
		CipherSuites: t.CipherSuites, MinVersion: t.MinVersion, MaxVersion: t.MaxVersion,
		ClientCertFile: t.ShownCertFile, ClientKeyFile: t.ShownKeyFile, SkipClientSANVerify: t.AnyAddress,
	}
	if info.CertFile == "" && t.Auto {
		made, err := transport.SelfCert(etcdlog.New(log), dir, hosts, t.SelfSignedYears)
		if err != nil {
			return info, fmt.Errorf("make certificate: %w", err)
		}
		info.CertFile, info.KeyFile = made.CertFile, made.KeyFile
	}
	return info, nil
}

// certificates are the certificate and the authorities of a server, read again when
// their files change.
type certificates struct {
	info transport.TLSInfo
	log  *slog.Logger

	mu sync.Mutex
	// current is what was read last and without a fault; mu protects it and seen.
	current *tls.Config
	// seen is how the files were when they were last read.
	seen [3]stamp
}

// stamp is what shows that a file has changed.
type stamp struct {
	modified time.Time
	size     int64
}

func newCertificates(info transport.TLSInfo, log *slog.Logger) *certificates {
	return &certificates{info: info, log: log}
}

// serving returns the configuration of a server that uses the files as they are at
// each handshake. It fails where they can't be used now.
func (c *certificates) serving() (*tls.Config, error) {
	c.seen = c.stamps()
	first, err := c.read()
	if err != nil {
		return nil, err
	}
	if c.info.CRLFile != "" {
		if err := checkRevocations(c.info.CRLFile); err != nil {
			return nil, err
		}
	}
	c.current = first
	serving := first.Clone()
	serving.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) { return c.newest(), nil }
	return serving, nil
}

// newest returns the configuration by the files as they are now, or the last good
// one where they can't be used.
func (c *certificates) newest() *tls.Config {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.stamps()
	if now == c.seen {
		return c.current
	}
	c.seen = now
	next, err := c.read()
	if err != nil {
		c.log.LogAttrs(context.Background(), slog.LevelWarn, "changed certificates can't be used", slog.Any("error", err))
		return c.current
	}
	c.current = next
	c.log.LogAttrs(context.Background(), slog.LevelInfo, "certificates were read again")
	return c.current
}

// read makes a configuration of the files.
func (c *certificates) read() (*tls.Config, error) {
	made, err := c.info.ServerConfig()
	if err != nil {
		return nil, fmt.Errorf("read certificates: %w", err)
	}
	// The library would read the certificate at each handshake.
	cert, err := tlsutil.NewCert(c.info.CertFile, c.info.KeyFile, nil)
	if err != nil {
		return nil, fmt.Errorf("read certificates: %w", err)
	}
	made.GetCertificate, made.Certificates = nil, []tls.Certificate{*cert}
	c.info.ConfigureCRLVerification(made)
	return made, nil
}

// stamps looks at the files. One that isn't there has the zero stamp.
func (c *certificates) stamps() [3]stamp {
	var all [3]stamp
	for i, name := range [3]string{c.info.CertFile, c.info.KeyFile, c.info.TrustedCAFile} {
		if info, err := os.Stat(name); err == nil {
			all[i] = stamp{info.ModTime(), info.Size()}
		}
	}
	return all
}

// checkRevocations checks that a list of revoked certificates can be read, since
// otherwise no client is let in.
func checkRevocations(name string) error {
	b, err := os.ReadFile(name)
	if err == nil {
		_, err = x509.ParseRevocationList(b)
	}
	if err != nil {
		return fmt.Errorf("read revoked certificates in %s: %w", name, err)
	}
	return nil
}
