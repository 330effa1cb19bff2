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
	"github.com/prometheus/client_golang/prometheus"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/redisstore"
)

func init() { caddy.RegisterModule(new(RedisStore)) }

// RedisStore keeps everything on a Redis or Valkey server that several processes
// share: a single server, a Cluster, or one behind Sentinel. Redis 6.2 or Valkey 7.2
// and later.
//
// Placeholders like `{env.REDIS_PASSWORD}` and `{file./run/secrets/redis}` are replaced
// in every text, so that secrets need not be in the config.
type RedisStore struct {
	// Where the servers are: `<host>:<port>`, or the path of a unix socket. Several are
	// nodes of a Cluster, from which the others are found; with a sentinel they are those
	// of the sentinels.
	Addresses []string `json:"addresses,omitempty"`

	// The name of the master that the sentinels at the addresses watch.
	Sentinel string `json:"sentinel,omitempty"`

	// The user of the access control list. Default: that of Redis. It may be changed by a
	// reload.
	Username string `json:"username,omitempty"`

	// The password, of the user or of the server. Default: none. It may be changed by a
	// reload.
	Password string `json:"password,omitempty"`

	// User and password of the sentinels. Default: none. They may be changed by a reload.
	SentinelUsername string `json:"sentinel_username,omitempty"`
	SentinelPassword string `json:"sentinel_password,omitempty"`

	// The number of the database. A Cluster has 0 only. Default: `0`.
	Database int `json:"database,omitempty"`

	// What the name of every key begins with. Default: `limitkeeper:`.
	Prefix string `json:"prefix,omitempty"`

	// How long to wait for a connection, and for an answer. Default: `500ms`.
	Timeout caddy.Duration `json:"timeout,omitempty"`

	// How many entries the history of a key or of a user holds at most. Default:
	// `10000`. It may be changed by a reload.
	History int `json:"history,omitempty"`

	// For which replicas decisions and writes wait, so that a fail-over forgets none that
	// was answered. Default: none. It may be changed by a reload.
	WaitReplicas *WaitReplicas `json:"wait_replicas,omitempty"`

	// Speak TLS. Default: no. A reload reads the files again, and may name others; one that
	// turns TLS on or off opens the store anew.
	TLS *RedisTLS `json:"tls,omitempty"`

	options redisstore.Options
}

// WaitReplicas says for how many replicas to wait, and how long. What they do not have
// by then is answered as if the store were unavailable.
type WaitReplicas struct {
	Replicas int            `json:"replicas"`
	Timeout  caddy.Duration `json:"timeout"`
}

// RedisTLS says how to speak TLS.
type RedisTLS struct {
	// A PEM file with the authorities that the servers' certificates are from. Default:
	// those of the system.
	CA string `json:"ca,omitempty"`

	// PEM files with a certificate to show, and its key. Default: none.
	Certificate string `json:"certificate,omitempty"`
	Key         string `json:"key,omitempty"`

	// The name that the certificates are for. Default: the host of the address.
	ServerName string `json:"server_name,omitempty"`
}

// CaddyModule implements [caddy.Module].
func (*RedisStore) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "limitkeeper.store.redis", New: func() caddy.Module { return new(RedisStore) }}
}

// Provision implements [caddy.Provisioner]. It opens nothing.
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
		return errors.New("store redis: sentinel_username and sentinel_password are of no use without sentinel")
	}
	r.options = redisstore.Options{Addresses: r.Addresses, Sentinel: r.Sentinel, Username: r.Username, Password: r.Password,
		SentinelUsername: r.SentinelUsername, SentinelPassword: r.SentinelPassword, Database: r.Database, Prefix: r.Prefix,
		Timeout: time.Duration(r.Timeout), History: r.History, Wait: r.wait()}
	if r.TLS != nil {
		config, err := r.TLS.config()
		if err != nil {
			return fmt.Errorf("store redis: tls: %w", err)
		}
		r.options.TLS = config
	}
	return r.options.Check()
}

// replace replaces the placeholders. An error names what has one that is not known, or
// is empty, and shows nothing.
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

// wrongRedisAddress is the error for an address. It does not show the address, which may be
// a URL with a password.
func wrongRedisAddress(i int) error {
	return fmt.Errorf("store redis: address %d: want <host>:<port>, or the path of a unix socket", i+1)
}

// redisAddress returns an address as it is dialled.
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

func (r *RedisStore) wait() redisstore.Wait {
	if r.WaitReplicas == nil {
		return redisstore.Wait{}
	}
	return redisstore.Wait{Replicas: r.WaitReplicas.Replicas, Timeout: time.Duration(r.WaitReplicas.Timeout)}
}

// config returns the configuration of TLS.
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
		return nil, errors.New("a certificate and its key go together")
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

// PoolKey implements [StoreModule]: the store is where it is, and under which names. With
// TLS it is at other ports, though they may have the same numbers.
func (r *RedisStore) PoolKey() string {
	addresses := slices.Sorted(slices.Values(r.Addresses))
	return fmt.Sprintf("redis %q %q %d %q %t", addresses, r.Sentinel, r.Database, r.options.KeyPrefix(), r.TLS != nil)
}

// Open implements [StoreModule].
func (r *RedisStore) Open(log *slog.Logger, _ core.Tunables, c *core.Clock) (core.Store, error) {
	o := r.options
	o.Logger, o.Clock = log, c
	s, err := redisstore.Open(context.Background(), o)
	if err != nil {
		return nil, err
	}
	log.Info("counting on Redis", "addresses", o.Addresses, "sentinel", o.Sentinel, "database", o.Database, "prefix", o.KeyPrefix(),
		"wait_replicas", o.Wait.Replicas)
	return s, nil
}

// Tune implements [StoreModule].
func (r *RedisStore) Tune(s core.Store, _ core.Tunables) {
	store := s.(*redisstore.Store)
	store.SetHistoryCap(r.options.History)
	store.SetWait(r.options.Wait)
	store.SetAccess(r.options.Access())
}

// The figures of a store on Redis.
var (
	redisMasters = prometheus.NewDesc("limitkeeper_redis_masters",
		"The masters that are known.", nil, nil)
	redisAway = prometheus.NewDesc("limitkeeper_redis_masters_away",
		"How many of the masters do not answer.", nil, nil)
	redisWatching = prometheus.NewDesc("limitkeeper_redis_watching",
		"Whether all masters tell what other nodes change: 1, or 0, and then nothing is taken from memory.", nil, nil)
	redisLost = prometheus.NewDesc("limitkeeper_redis_lost",
		"Whether Redis has lost data: 1, and then requests are refused until the loss is accepted, or 0.", nil, nil)
	redisLosses = prometheus.NewDesc("limitkeeper_redis_losses_total",
		"Losses of data on Redis that this node has found.", nil, nil)
	redisFailovers = prometheus.NewDesc("limitkeeper_redis_failovers_total",
		"Fail-overs and restarts of masters that this node has seen.", nil, nil)
	redisWarnings = prometheus.NewDesc("limitkeeper_redis_warnings",
		"Warnings in the log that hold for masters: of eviction, replicas, and persistence.", nil, nil)
)

func describeRedis(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{redisMasters, redisAway, redisWatching, redisLost, redisLosses, redisFailovers, redisWarnings} {
		ch <- d
	}
}

// collectRedis shows the figures of a store, if it is one on Redis.
func collectRedis(s core.Store, ch chan<- prometheus.Metric) {
	r, ok := s.(*redisstore.Store)
	if !ok {
		return
	}
	st := r.Stats()
	show := func(d *prometheus.Desc, kind prometheus.ValueType, v float64) {
		ch <- prometheus.MustNewConstMetric(d, kind, v)
	}
	show(redisMasters, prometheus.GaugeValue, float64(st.Masters))
	show(redisAway, prometheus.GaugeValue, float64(st.Away))
	show(redisWatching, prometheus.GaugeValue, oneIf(st.Watching))
	show(redisLost, prometheus.GaugeValue, oneIf(st.Lost))
	show(redisLosses, prometheus.CounterValue, float64(st.Losses))
	show(redisFailovers, prometheus.CounterValue, float64(st.Failovers))
	show(redisWarnings, prometheus.GaugeValue, float64(st.Warnings))
}

func oneIf(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// Interface guards.
var (
	_ caddy.Provisioner = (*RedisStore)(nil)
	_ StoreModule       = (*RedisStore)(nil)
)
