package config

import (
	"crypto/tls"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestTLSSettings(t *testing.T) {
	c := parse(t, nil, "--listen-client-urls=https://127.0.0.1:2379,unixs:///run/x.sock", "--advertise-client-urls=https://a:1",
		"--cert-file=c", "--key-file=k", "--trusted-ca-file=ca", "--client-cert-auth", "--client-crl-file=crl",
		"--client-cert-allowed-hostname=a.example,b.example", "--tls-min-version=TLS1.2", "--tls-max-version=TLS1.3",
		"--cipher-suites=TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305",
		"--cors=https://a.example:1,https://b.example:2", "--host-whitelist=a,b", "--enable-grpc-gateway=false")
	want := TLS{
		CertFile: "c", KeyFile: "k", TrustedCAFile: "ca", CRLFile: "crl", ClientCertAuth: true, SelfSignedYears: 1,
		AllowedHostnames: []string{"a.example", "b.example"}, MinVersion: tls.VersionTLS12, MaxVersion: tls.VersionTLS13,
		CipherSuites: []uint16{tls.TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256, tls.TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256},
	}
	if diff := cmp.Diff(want, c.ClientTLS); diff != "" {
		t.Errorf("TLS (-want +got):\n%s", diff)
	}
	if len(c.Warnings) != 0 || c.EnableGateway || strings.Join(c.CORS, " ") != "https://a.example:1 https://b.example:2" ||
		strings.Join(c.HostWhitelist, " ") != "a b" {
		t.Errorf("gateway %t for %q and %q, warnings %q", c.EnableGateway, c.CORS, c.HostWhitelist, c.Warnings)
	}

	c = parse(t, nil, "--listen-client-urls=https://127.0.0.1:1,http://127.0.0.1:2", "--advertise-client-urls=https://a:1",
		"--cert-file=c", "--key-file=k", "--auto-tls", "--client-cert-auth", "--cors=", "--host-whitelist=", "--tls-min-version=")
	if len(c.Warnings) != 3 || strings.Join(c.CORS, " ") != "*" || len(c.HostWhitelist) != 0 || c.ClientTLS.MinVersion != 0 {
		t.Errorf("%q, %q, %d, warnings %q", c.CORS, c.HostWhitelist, c.ClientTLS.MinVersion, c.Warnings)
	}

	path := writeFile(t, "client-transport-security:\n  allowed-cn: [a, b]\n  auto-tls: true\n")
	if c = parse(t, nil, "--config-file", path); strings.Join(c.ClientTLS.AllowedCNs, " ") != "a b" || !c.ClientTLS.Auto {
		t.Errorf("from the file: %+v", c.ClientTLS)
	}
}
