package caddymodule

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/service"
	"github.com/limitkeeper/limitkeeper/storage/redisstore"
)

func init() { caddy.RegisterModule(new(RedisStore)) }

// RedisStore keeps all data on a Redis or Valkey that several nodes share: a single server, a
// Cluster, or a server behind Sentinel. It needs Redis 6.2 or Valkey 7.2.
//
// Placeholders are replaced in every string. Use `{env.REDIS_PASSWORD}` or
// `{file./run/secrets/redis}` to keep secrets out of the config.
type RedisStore struct {
	// The servers: `<host>:<port>`, or the path of a unix socket. Several addresses are nodes of a
	// Cluster, which lead to the other nodes. With `sentinel` they are the sentinels.
	Addresses []string `json:"addresses,omitempty"`

	// The name of the master that the sentinels monitor.
	Sentinel string `json:"sentinel,omitempty"`

	// The user name (ACL). Default: the default user of Redis. A reload can change it.
	Username string `json:"username,omitempty"`

	// The password of the user or the server. Default: none. A reload can change it.
	Password string `json:"password,omitempty"`

	// User name and password of the sentinels. Default: none. A reload can change them.
	SentinelUsername string `json:"sentinel_username,omitempty"`
	SentinelPassword string `json:"sentinel_password,omitempty"`

	// The number of the database. A Cluster has only database 0. Default: `0`.
	Database int `json:"database,omitempty"`

	// The prefix of all Redis keys. Default: `limitkeeper:`.
	Prefix string `json:"prefix,omitempty"`

	// The timeout for a connection and for an answer. Default: `500ms`.
	Timeout caddy.Duration `json:"timeout,omitempty"`

	// The maximum number of history entries of a key or a user. Default: `10000`. A reload can
	// change it.
	History int `json:"history,omitempty"`

	// Wait until replicas have each decision and each write, so that a fail-over loses no answered
	// request. Default: do not wait. A reload can change it.
	WaitReplicas *WaitReplicas `json:"wait_replicas,omitempty"`

	// Use TLS. Default: no TLS. A reload reads the files again and can change their names. A reload
	// that turns TLS on or off reopens the store.
	TLS *RedisTLS `json:"tls,omitempty"`

	options redisstore.Options
}

// WaitReplicas is the number of replicas to wait for and the maximum wait. After the timeout the
// request is answered like one to an unavailable store.
type WaitReplicas struct {
	Replicas int            `json:"replicas"`
	Timeout  caddy.Duration `json:"timeout"`
}

// RedisTLS is the TLS configuration of a connection to Redis.
type RedisTLS struct {
	// A PEM file with the CA certificates of the servers. Default: the CAs of the system.
	CA string `json:"ca,omitempty"`

	// PEM files with the client certificate and its key. Default: none.
	Certificate string `json:"certificate,omitempty"`
	Key         string `json:"key,omitempty"`

	// The host name in the server certificates. Default: the host of the address.
	ServerName string `json:"server_name,omitempty"`
}

// CaddyModule implements [caddy.Module].
func (*RedisStore) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "limitkeeper.store.redis", New: func() caddy.Module { return new(RedisStore) }}
}

// Provision implements [caddy.Provisioner]. It does not open the store.
func (r *RedisStore) Provision(caddy.Context) error {
	if err := r.replace(); err != nil {
		return err
	}
	if len(r.Addresses) == 0 {
		return errors.New("store redis: no address is given")
	}
	for i, a := range r.Addresses {
		address, ok := redisAddress(a)
		if !ok {
			return wrongRedisAddress(i)
		}
		r.Addresses[i] = address
	}
	if r.Sentinel == "" && (r.SentinelUsername != "" || r.SentinelPassword != "") {
		return errors.New("store redis: sentinel_username and sentinel_password need sentinel")
	}
	r.options = redisstore.Options{Addresses: r.Addresses, Sentinel: r.Sentinel, Username: r.Username, Password: r.Password,
		SentinelUsername: r.SentinelUsername, SentinelPassword: r.SentinelPassword, Database: r.Database, Prefix: r.Prefix,
		Timeout: time.Duration(r.Timeout), History: r.History}
	if w := r.WaitReplicas; w != nil {
		r.options.Wait = redisstore.Wait{Replicas: w.Replicas, Timeout: time.Duration(w.Timeout)}
	}
	if r.TLS != nil {
		config, err := r.TLS.config()
		if err != nil {
			return fmt.Errorf("store redis: tls: %w", err)
		}
		r.options.TLS = config
	}
	return r.options.Check()
}

// replace replaces the placeholders. The error names the option with an unknown or empty
// placeholder, and never its value.
func (r *RedisStore) replace() (err error) {
	repl := caddy.NewReplacer()
	r.Addresses = slices.Clone(r.Addresses)
	texts := map[string]*string{"sentinel": &r.Sentinel, "username": &r.Username, "password": &r.Password,
		"sentinel_username": &r.SentinelUsername, "sentinel_password": &r.SentinelPassword, "prefix": &r.Prefix}
	for i := range r.Addresses {
		texts[fmt.Sprintf("address %d", i+1)] = &r.Addresses[i]
	}
	if r.TLS != nil {
		t := *r.TLS
		r.TLS = &t
		texts["ca"], texts["certificate"], texts["key"], texts["server_name"] = &t.CA, &t.Certificate, &t.Key, &t.ServerName
	}
	for name, text := range texts {
		if *text, err = repl.ReplaceOrErr(*text, true, true); err != nil {
			return fmt.Errorf("store redis: %s: %w", name, err)
		}
		*text = strings.TrimSpace(*text) // a file with a secret often ends with a line break
	}
	return nil
}

// wrongRedisAddress is the error for an invalid address. It does not quote the address, which may
// be a URL with a password.
func wrongRedisAddress(i int) error {
	return fmt.Errorf("store redis: address %d: want <host>:<port>, or the path of a unix socket", i+1)
}

// redisAddress returns the address to dial, and false for an invalid address.
func redisAddress(a string) (address string, ok bool) {
	a = strings.TrimPrefix(a, "unix/")
	if strings.HasPrefix(a, "/") {
		return a, true
	}
	host, port, err := net.SplitHostPort(a)
	if err != nil || host == "" || port == "" {
		return a, false
	}
	_, err = net.LookupPort("tcp", port)
	return a, err == nil
}

// config returns the TLS configuration for crypto/tls.
func (t *RedisTLS) config() (*tls.Config, error) {
	c := &tls.Config{ServerName: t.ServerName, MinVersion: tls.VersionTLS12}
	if t.CA != "" {
		pem, err := os.ReadFile(t.CA)
		if err != nil {
			return nil, err
		}
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("%s holds no certificate", t.CA)
		}
	}
	if (t.Certificate == "") != (t.Key == "") {
		return nil, errors.New("certificate and key must be given together")
	}
	if t.Certificate != "" {
		pair, err := tls.LoadX509KeyPair(t.Certificate, t.Key)
		if err != nil {
			return nil, err
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return c, nil
}

// PoolKey implements [StoreModule]. Addresses, sentinel, database, prefix and the use of TLS
// identify the store.
func (r *RedisStore) PoolKey() string {
	addresses := slices.Sorted(slices.Values(r.Addresses))
	return fmt.Sprintf("redis %q %q %d %q %t", addresses, r.Sentinel, r.Database, r.options.KeyPrefix(), r.TLS != nil)
}

// Open implements [StoreModule].
func (r *RedisStore) Open(log *slog.Logger, _ service.Tunables, c *core.Clock) (core.Store, error) {
	o := r.options
	o.Logger, o.Clock, o.OnCall = log, c, observeCall
	s, err := redisstore.Open(context.Background(), o)
	if err != nil {
		return nil, err
	}
	log.Info("counting on Redis", "addresses", o.Addresses, "sentinel", o.Sentinel, "database", o.Database, "prefix", o.KeyPrefix(),
		"wait_replicas", o.Wait.Replicas)
	return s, nil
}

// Tune implements [StoreModule].
func (r *RedisStore) Tune(s core.Store, _ service.Tunables) {
	store := s.(*redisstore.Store)
	store.SetHistoryCap(r.options.History)
	store.SetWait(r.options.Wait)
	store.SetAccess(r.options.Access())
}

// The metrics of calls to Redis. All stores of the process share them.
var (
	callTime     = newHistogram("redis_call_seconds", "How long a call to Redis took, also one without an answer.", .0001, .00025, .001, .0025, .01, .025, .1, .25, 1, 2.5)
	callFailures = newCounter("redis_call_errors_total", "Calls to Redis without an answer.")
)

// observeCall observes a call to Redis.
func observeCall(took time.Duration, fault error) {
	callTime.Observe(took.Seconds())
	if fault != nil {
		callFailures.Inc()
	}
}

// collect implements [meteredStore].
func (*RedisStore) collect(s core.Store, ch scrape) {
	ch.measured(callTime, callFailures)
	st := s.(*redisstore.Store).Stats()
	ch.gauge("redis_masters", "Known masters.", float64(st.Masters))
	ch.gauge("redis_masters_away", "Masters that do not answer.", float64(st.Away))
	ch.gauge("redis_watching",
		"1 while this node receives the changes of other nodes from all masters, else 0; at 0 the key cache is bypassed.", oneIf(st.Watching))
	ch.gauge("redis_lost", "1 after Redis has lost data, else 0; at 1 requests are refused until the loss is accepted.", oneIf(st.Lost))
	ch.counter("redis_losses_total", "Data losses on Redis that this node detected.", float64(st.Losses))
	ch.counter("redis_failovers_total", "Fail-overs and restarts of masters that this node detected.", float64(st.Failovers))
	ch.gauge("redis_warnings", "Current warnings about the configuration of masters: eviction, replicas, persistence.", float64(st.Warnings))
}

// Interface guards.
var (
	_ caddy.Provisioner = (*RedisStore)(nil)
	_ StoreModule       = (*RedisStore)(nil)
	_ meteredStore      = (*RedisStore)(nil)
)
