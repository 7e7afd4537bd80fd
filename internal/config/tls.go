package config

import (
	"cmp"
	"crypto/tls"
	"errors"
	"fmt"
	"math"
	"strings"

	"go.etcd.io/etcd/client/pkg/v3/tlsutil"
)

// TLS says how clients, or other nodes, are served on URLs of https and unixs.
type TLS struct {
	// CertFile and KeyFile hold the server's certificate and its key, in PEM.
	CertFile, KeyFile string
	// TrustedCAFile holds the authorities of clients' certificates; where it is
	// given, or ClientCertAuth is set, a client must show one.
	TrustedCAFile  string
	ClientCertAuth bool
	// CRLFile lists certificates of clients that are revoked, in DER.
	CRLFile string
	// AllowedCNs and AllowedHostnames are the names of which a client's certificate
	// must carry one; at most one of the lists is given.
	AllowedCNs, AllowedHostnames []string
	// Auto makes a certificate in the data directory, valid for SelfSignedYears,
	// where no files are given.
	Auto            bool
	SelfSignedYears uint
	// MinVersion and MaxVersion bound the version, MaxVersion 0 not at all.
	MinVersion, MaxVersion uint16
	// CipherSuites are those of TLS 1.2; none stands for Go's choice.
	CipherSuites []uint16
	// ShownCertFile and ShownKeyFile are what this node shows to other nodes; without them
	// the server's are. AnyAddress lets in nodes from addresses that their certificates do
	// not name. These are of TLS between nodes alone.
	ShownCertFile, ShownKeyFile string
	AnyAddress                  bool
}

// Given reports whether there is anything to serve TLS with.
func (t *TLS) Given() bool { return t.CertFile != "" || t.KeyFile != "" || t.Auto }

func (c *Config) tlsOptions() []option {
	t := &c.ClientTLS
	const client = "client-transport-security."
	return []option{
		{name: "cert-file", value: text(&t.CertFile), key: client + "cert-file", help: "Certificate to serve clients with on https and unixs URLs, read again when it changes"},
		{name: "key-file", value: text(&t.KeyFile), key: client + "key-file", help: "Key of that certificate"},
		{name: "trusted-ca-file", value: text(&t.TrustedCAFile), key: client + "trusted-ca-file", help: "Authorities of clients' certificates; clients must then show one"},
		{name: "client-cert-auth", value: toggle(&t.ClientCertAuth), key: client + "client-cert-auth", help: "Demand a certificate of clients, and take its common name for a user where the client has no token"},
		{name: "client-crl-file", value: text(&t.CRLFile), key: noKey, help: "List of revoked certificates of clients, in DER, read for each connection"},
		{name: "client-cert-allowed-hostname", value: words(&t.AllowedHostnames), key: client + "allowed-hostname", help: "Names of which a client's certificate must be for one, separated by commas"},
		{name: "client-cert-allowed-cn", fileOnly: true, value: words(&t.AllowedCNs), key: client + "allowed-cn", help: "Common names of which a client's certificate must have one"},
		{name: "auto-tls", value: toggle(&t.Auto), key: client + "auto-tls", help: "Make a certificate where none is given"},
		{name: "self-signed-cert-validity", value: number(&t.SelfSignedYears, 1, math.MaxUint16), help: "Years that such a certificate is valid"},
		{name: "cipher-suites", value: cipherSuites(&t.CipherSuites), help: "Cipher suites of TLS 1.2 by name, separated by commas (default: Go's choice)"},
		{name: "tls-min-version", value: tlsVersion(&t.MinVersion), help: "Oldest version of TLS: TLS1.2 or TLS1.3"},
		{name: "tls-max-version", value: tlsVersion(&t.MaxVersion), help: "Newest version of TLS: TLS1.2 or TLS1.3 (default: the newest there is)"},
	}
}

func (c *Config) peerTLSOptions() []option {
	t := &c.PeerTLS
	const peer = "peer-transport-security."
	return []option{
		{name: "peer-cert-file", value: text(&t.CertFile), key: peer + "cert-file", help: "Certificate to serve other nodes with on https and unixs URLs, and to show to them"},
		{name: "peer-key-file", value: text(&t.KeyFile), key: peer + "key-file", help: "Key of that certificate"},
		{name: "peer-client-cert-file", value: text(&t.ShownCertFile), key: peer + "client-cert-file", help: "Another certificate to show to other nodes"},
		{name: "peer-client-key-file", value: text(&t.ShownKeyFile), key: peer + "client-key-file", help: "Key of that certificate"},
		{name: "peer-client-cert-auth", value: toggle(&t.ClientCertAuth), key: peer + "client-cert-auth", help: "Demand a certificate of other nodes"},
		{name: "peer-trusted-ca-file", value: text(&t.TrustedCAFile), key: peer + "trusted-ca-file", help: "Authorities of other nodes' certificates; they must then show one"},
		{name: "peer-auto-tls", value: toggle(&t.Auto), key: peer + "auto-tls", help: "Make a certificate for other nodes where none is given, and check none of theirs"},
		{name: "peer-cert-allowed-cn", value: words(&t.AllowedCNs), key: peer + "allowed-cn", help: "Common names of which another node's certificate must have one, separated by commas"},
		{name: "peer-cert-allowed-hostname", value: words(&t.AllowedHostnames), key: peer + "allowed-hostname", help: "Names of which another node's certificate must be for one, separated by commas"},
		{name: "peer-skip-client-san-verification", value: toggle(&t.AnyAddress), key: peer + "skip-client-san-verification", help: "Let in nodes from addresses that their certificates do not name"},
		{name: "peer-crl-file", value: text(&t.CRLFile), key: noKey, help: "List of revoked certificates of other nodes, in DER, read for each connection"},
	}
}

// checkPeerTLS checks the settings of TLS between nodes, and takes over those that are
// one for all.
func (c *Config) checkPeerTLS() error {
	t := &c.PeerTLS
	t.MinVersion, t.MaxVersion, t.CipherSuites = c.ClientTLS.MinVersion, c.ClientTLS.MaxVersion, c.ClientTLS.CipherSuites
	t.SelfSignedYears = c.ClientTLS.SelfSignedYears
	if len(t.AllowedCNs) > 0 && len(t.AllowedHostnames) > 0 {
		return errors.New("--peer-cert-allowed-cn and --peer-cert-allowed-hostname exclude each other")
	}
	for _, u := range c.ListenPeerURLs {
		switch {
		case !secure(u):
		case !t.Given():
			return fmt.Errorf("--peer-cert-file and --peer-key-file, or --peer-auto-tls, are required for --listen-peer-urls %s", u.String())
		case (t.CertFile == "") != (t.KeyFile == ""):
			return errors.New("--peer-cert-file and --peer-key-file must be given together")
		case (t.ShownCertFile == "") != (t.ShownKeyFile == ""):
			return errors.New("--peer-client-cert-file and --peer-client-key-file must be given together")
		}
	}
	return nil
}

// checkTLS checks what only all settings of TLS together show. made holds the
// names under which options were set.
func (c *Config) checkTLS(made map[string]string) error {
	t := &c.ClientTLS
	switch {
	case len(t.AllowedCNs) > 0 && len(t.AllowedHostnames) > 0:
		return errors.New("--client-cert-allowed-cn and --client-cert-allowed-hostname exclude each other")
	case t.MaxVersion != 0 && t.MinVersion > t.MaxVersion:
		return fmt.Errorf("--tls-min-version (%s) is greater than --tls-max-version (%s)",
			versionText(t.MinVersion), versionText(t.MaxVersion))
	case t.MinVersion == tls.VersionTLS13 && len(t.CipherSuites) > 0:
		return errors.New("--cipher-suites cannot be set where --tls-min-version leaves nothing but TLS1.3")
	}
	var plain []string
	for _, l := range c.clientListens() {
		for _, u := range l.urls {
			switch {
			case !secure(u):
				if l.flag != "--listen-metrics-urls" { // there by design
					plain = append(plain, u.String())
				}
			case !t.Given():
				return fmt.Errorf("--cert-file and --key-file, or --auto-tls, are required for %s %s", l.flag, u.String())
			case (t.CertFile == "") != (t.KeyFile == ""):
				return errors.New("--cert-file and --key-file must be given together")
			}
		}
	}
	if setting := cmp.Or(made["cert-file"], made["key-file"]); setting != "" && len(plain) > 0 {
		c.warn(setting, plainText, plain[0])
	}
	if t.ClientCertAuth && len(plain) > 0 {
		c.warn(made["client-cert-auth"], plainText, plain[0])
	}
	if t.Auto && t.CertFile != "" {
		c.warn(made["auto-tls"], "has no effect beside %s", made["cert-file"])
	}
	return nil
}

// plainText warns of what is set for TLS where a URL has none.
const plainText = "does not concern %s, which is served without TLS"

func (c *Config) warn(setting, format string, args ...any) {
	c.Warnings = append(c.Warnings, Warning{Setting: setting, Text: fmt.Sprintf(format, args...)})
}

// tlsVersion takes the versions that etcd knows; the empty text is 0.
func tlsVersion(p *uint16) value {
	parse := func(s string) (uint16, error) {
		v, err := tlsutil.GetTLSVersion(s)
		if err != nil {
			return 0, errors.New(`must be "TLS1.2" or "TLS1.3"`)
		}
		return v, nil
	}
	return &scalar[uint16]{p: p, parse: parse, format: versionText, k: kindText}
}

func versionText(v uint16) string {
	switch v {
	case tls.VersionTLS12:
		return "TLS1.2"
	case tls.VersionTLS13:
		return "TLS1.3"
	}
	return ""
}

// cipherSuites takes Go's names of cipher suites.
func cipherSuites(p *[]uint16) value {
	parse := func(s string) ([]uint16, error) {
		if s == "" {
			return nil, nil
		}
		return tlsutil.GetCipherSuites(strings.Split(s, ","))
	}
	format := func(ids []uint16) string {
		names := make([]string, len(ids))
		for i, id := range ids {
			names[i] = tls.CipherSuiteName(id)
		}
		return strings.Join(names, ",")
	}
	return &scalar[[]uint16]{p: p, parse: parse, format: format, k: kindText}
}
