package redisstore

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/redis/rueidis"

	"github.com/limitkeeper/limitkeeper/core"
)

// Defaults of [Options].
const (
	DefaultPrefix  = "limitkeeper:"
	DefaultTimeout = 500 * time.Millisecond
	DefaultHistory = 10_000
)

// MaxHistory is the largest [Options.History]. One script searches a whole history.
const MaxHistory = 1_000_000

// Options configure a store. A zero value means the default; Addresses has none.
type Options struct {
	// Addresses are host:port pairs or paths of unix sockets. Several addresses are nodes of a Cluster; a
	// single one may be a Cluster node, too. The client finds the other nodes. With Sentinel, Addresses
	// are the addresses of the sentinels.
	Addresses []string
	Sentinel  string // name of the master that the sentinels monitor; empty without Sentinel

	Username, Password                 string
	SentinelUsername, SentinelPassword string
	Database                           int         // number of the database; a Cluster has only 0
	TLS                                *tls.Config // nil for plain TCP

	Prefix  string        // first part of every key name; without braces
	Timeout time.Duration // bounds connecting, and each call
	History int           // maximum number of entries in the history of a key or user
	Wait    Wait

	Logger *slog.Logger // nil discards the log

	// Clock is the clock of the process, shared with the service. Nil means the clock of the machine. The
	// store passes it the times of the masters.
	Clock *core.Clock

	// OnCall is called after each call to Redis, with its duration and with the error of a call without an answer. It may
	// be nil, and must return at once.
	OnCall func(took time.Duration, fault error)

	access *atomic.Pointer[Access] // credentials of new connections; nil until Open
	conns  *conns                  // open connections to servers; nil until Open
}

// Access holds the credentials for servers and sentinels. All of it may change while the store is open,
// except whether TLS is nil: a Cluster announces different ports for TLS.
type Access struct {
	Username, Password                 string
	SentinelUsername, SentinelPassword string
	TLS                                *tls.Config
}

// Access returns the credentials in the options.
func (o *Options) Access() Access {
	return Access{o.Username, o.Password, o.SentinelUsername, o.SentinelPassword, o.TLS}
}

// Wait configures WAIT: how many replicas must confirm a decision or write before it is answered. Without
// enough confirmations in time, the call fails with [core.ErrUnavailable].
type Wait struct {
	Replicas int           // 0 does not wait
	Timeout  time.Duration // added to the timeout of the call
}

func (o Options) withDefaults() (Options, error) {
	o.Prefix = o.KeyPrefix()
	o.Timeout, o.History = cmp.Or(o.Timeout, DefaultTimeout), cmp.Or(o.History, DefaultHistory)
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Clock == nil {
		o.Clock = core.NewClock(nil, nil)
	}
	a := o.Access()
	o.access = new(atomic.Pointer[Access])
	o.access.Store(&a)
	o.conns = &conns{}
	return o, o.Check()
}

// Check returns the first error in the options.
func (o *Options) Check() error {
	switch {
	case len(o.Addresses) == 0:
		return errors.New("redis: no address is given")
	case strings.ContainsAny(o.Prefix, "{}"):
		return fmt.Errorf("redis: the prefix %q holds a brace, which would change the Cluster slot of keys", o.Prefix)
	case o.Database < 0:
		return fmt.Errorf("redis: negative database %d", o.Database)
	case o.Database != 0 && o.Sentinel == "" && len(o.Addresses) > 1:
		return fmt.Errorf("redis: a Cluster has no database %d, only 0", o.Database)
	case o.Wait.Replicas < 0 || o.Wait.Replicas > 0 && o.Wait.Timeout < time.Millisecond:
		return errors.New("redis: waiting for replicas needs a positive number and a timeout of at least 1ms")
	case o.Timeout < 0 || o.History < 0:
		return errors.New("redis: negative timeout or history")
	case o.History > MaxHistory:
		return fmt.Errorf("redis: history %d exceeds the maximum of %d", o.History, MaxHistory)
	}
	return nil
}

// KeyPrefix returns the first part of every key name.
func (o *Options) KeyPrefix() string { return cmp.Or(o.Prefix, DefaultPrefix) }

// address describes the servers in messages.
func (o *Options) address() string {
	at := strings.Join(o.Addresses, ", ")
	if o.Sentinel != "" {
		return "master " + o.Sentinel + " of sentinels " + at
	}
	return at
}

// rueidis cannot cancel a call that waits for room in the ring buffer of its connection. So the ring is
// never full: a node has at most half as many calls as the ring has entries, and keepAlive closes a
// connection whose server is silent.
const (
	ringScale = 13 // 2^13 entries
	maxCalls  = 1 << (ringScale - 1)
)

// flushDelay is how long a connection collects commands before it sends them, while other calls are
// running. Fewer and larger packets cost both sides less CPU.
const flushDelay = 100 * time.Microsecond

// keepAlive is the interval of the probes on a silent connection.
const keepAlive = 300 * time.Millisecond

// clientOption returns the options of the Redis client. Each new connection uses the current Access.
func (o *Options) clientOption() rueidis.ClientOption {
	return rueidis.ClientOption{
		InitAddress:       o.Addresses,
		AuthCredentialsFn: o.credentials,
		SelectDB:          o.Database,
		TLSConfig:         o.TLS, // non-nil makes a Cluster announce its TLS ports
		ClientName:        "limitkeeper",
		ClientSetInfo:     rueidis.DisableClientSetInfo, // Redis 7.2 and later logs CLIENT SETINFO if the ACL denies it
		Sentinel: rueidis.SentinelOption{MasterSet: o.Sentinel, TLSConfig: toSentinel,
			Dialer: o.dialer(), TopologyRefreshInterval: topologyEvery},
		Dialer:            o.dialer(),
		DialCtxFn:         o.dial,
		ConnWriteTimeout:  o.Timeout,
		RingScaleEachConn: ringScale,
		MaxFlushDelay:     flushDelay,
		PipelineMultiplex: -1, // one connection: concurrent calls share its packets
		ClusterOption:     rueidis.ClusterOption{ShardsRefreshInterval: topologyEvery},
		DisableCache:      true,
		DisableRetry:      true, // a call to a server that is down fails at once
	}
}

func (o *Options) dialer() net.Dialer { return net.Dialer{Timeout: o.Timeout, KeepAlive: keepAlive} }

func (o *Options) connect() (rueidis.Client, error) { return rueidis.NewClient(o.clientOption()) }

// explain adds to a connection error which option is probably wrong.
func (o *Options) explain(err error) error {
	reply, _ := rueidis.IsRedisErr(err)
	replied := func(what string) bool { return reply != nil && strings.HasPrefix(reply.Error(), what) }
	a := o.access.Load()
	switch {
	case (replied("NOAUTH") || replied("WRONGPASS")) && a.Password == "" && a.SentinelPassword == "":
		return fmt.Errorf("it requires a password; none is configured: %w", err)
	case replied("NOPERM") && o.Sentinel != "":
		return fmt.Errorf("a user of the sentinels or of Redis lacks permissions, possibly for keys with the prefix %q: %w", o.Prefix, err)
	case replied("NOPERM"):
		return fmt.Errorf("the user lacks permissions, possibly for keys with the prefix %q: %w", o.Prefix, err)
	case o.Sentinel != "" && replied("unknown command") && strings.Contains(reply.Error(), "SENTINEL"):
		return fmt.Errorf("the server is not a sentinel: %w", err)
	case strings.HasSuffix(err.Error(), unexpectedReply+"21") && o.TLS == nil: // first byte of a TLS alert
		return fmt.Errorf("the server requires TLS: %w", err)
	case strings.Contains(err.Error(), unexpectedReply):
		return fmt.Errorf("the server does not speak the Redis protocol: %w", err)
	case errors.Is(err, io.EOF), errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		if o.TLS == nil {
			return fmt.Errorf("the server closed the connection: does it require TLS? %w", err)
		}
		return fmt.Errorf("the server closed the connection: does it require another client certificate? %w", err)
	case !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, os.ErrDeadlineExceeded):
		return err
	case o.TLS != nil:
		return fmt.Errorf("no answer within %v: is the server running, and does it speak TLS? %w", o.Timeout, err)
	}
	return fmt.Errorf("no answer within %v: is the server running, and does it require TLS? %w", o.Timeout, err)
}

// unexpectedReply is the error text of rueidis when a reply is not RESP. The first byte of the reply
// follows.
const unexpectedReply = "received unknown message type: "
