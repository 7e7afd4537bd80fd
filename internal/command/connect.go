package command

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/latchkey-db/latchkey/internal/etcdlog"
)

// connection has etcdctl's flags, which its environment gives defaults.
type connection struct {
	endpoints, user, password string
	tls                       transport.TLSInfo
	dialTimeout               time.Duration
	// commandTimeout bounds calls that wait for nobody but the servers.
	commandTimeout time.Duration
}

// flags adds those of the connection to a set.
func (c *connection) flags(set *flag.FlagSet, environ []string) {
	env := func(name, value string) string {
		for _, e := range environ {
			if set, ok := strings.CutPrefix(e, "ETCDCTL_"+name+"="); ok {
				value = set
			}
		}
		return value
	}
	set.StringVar(&c.endpoints, "endpoints", env("ENDPOINTS", "127.0.0.1:2379"), "servers, separated by commas")
	set.StringVar(&c.user, "user", env("USER", ""), "user, perhaps with :password")
	set.StringVar(&c.password, "password", env("PASSWORD", ""), "password of the user")
	set.StringVar(&c.tls.TrustedCAFile, "cacert", env("CACERT", ""), "file of the authorities for the servers' certificates")
	set.StringVar(&c.tls.CertFile, "cert", env("CERT", ""), "file of the certificate to show the servers")
	set.StringVar(&c.tls.KeyFile, "key", env("KEY", ""), "file of its key")
	set.BoolVar(&c.tls.InsecureSkipVerify, "insecure-skip-tls-verify", env("INSECURE_SKIP_TLS_VERIFY", "") == "true", "do not check the servers' certificates")
	timeout, err := time.ParseDuration(env("DIAL_TIMEOUT", "2s"))
	if err != nil {
		timeout = 2 * time.Second
	}
	set.DurationVar(&c.dialTimeout, "dial-timeout", timeout, "how long a connection may take")
	set.DurationVar(&c.commandTimeout, "command-timeout", 5*time.Second, "how long a call may take that waits for nobody but the servers")
}

// bounded returns a context for a call that waits for nobody but the servers.
func (c *connection) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, c.commandTimeout, errNoAnswer)
}

var errNoAnswer = errors.New("no server answers in time")

// open returns a client, which the caller closes.
func (c *connection) open() (*clientv3.Client, error) {
	config := clientv3.Config{
		Endpoints: strings.Split(c.endpoints, ","), DialTimeout: c.dialTimeout,
		Logger: etcdlog.New(slog.New(slog.DiscardHandler)), // errors are told once
	}
	config.Username, config.Password = c.user, c.password
	if name, password, ok := strings.Cut(c.user, ":"); ok && c.password == "" {
		config.Username, config.Password = name, password
	}
	if !c.tls.Empty() || c.tls.TrustedCAFile != "" || c.tls.InsecureSkipVerify || strings.HasPrefix(c.endpoints, "https://") {
		var err error
		if config.TLS, err = c.tls.ClientConfig(); err != nil {
			return nil, fmt.Errorf("TLS: %w", err)
		}
	}
	return clientv3.New(config)
}
