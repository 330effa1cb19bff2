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

// The defaults of [Options].
const (
	DefaultPrefix  = "limitkeeper:"
	DefaultTimeout = 500 * time.Millisecond
	DefaultHistory = 10_000
)

// MaxHistory bounds how many entries a history may hold: one script goes through them.
const MaxHistory = 1_000_000

// Options say where the servers are and how they are used. The zero value of every
// member but Addresses stands for its default.
type Options struct {
	// Addresses are host:port or the path of a unix socket. Several are nodes of a
	// Cluster, from which the others are found; one may be a Cluster too. With
	// Sentinel they are those of the sentinels.
	Addresses []string
	Sentinel  string // the name of the master that the sentinels watch

	Username, Password                 string
	SentinelUsername, SentinelPassword string
	Database                           int         // of a single server or master, from 0
	TLS                                *tls.Config // nil for none

	Prefix  string        // what the name of every key begins with; no braces
	Timeout time.Duration // to connect, and for a call to be answered
	History int           // entries that the history of a key or user holds at most
	Wait    Wait

	Logger *slog.Logger // nil for none

	// Clock is the clock of the process, that of the service too; a clock of the machine by
	// default. The store tells it what the clocks of the masters show.
	Clock *core.Clock

	access *atomic.Pointer[Access] // what connections are made with; nil until Open
}

// Access is what the servers and the sentinels ask for. All of it may change while the
// store is open, but not whether TLS is nil: a Cluster says by that at which ports it is.
type Access struct {
	Username, Password                 string
	SentinelUsername, SentinelPassword string
	TLS                                *tls.Config
}

// Access returns what of the options the servers ask for.
func (o *Options) Access() Access {
	return Access{o.Username, o.Password, o.SentinelUsername, o.SentinelPassword, o.TLS}
}

// Wait says for how many replicas a decision and a write wait before they are
// answered (WAIT of Redis). What was not in time is [core.ErrUnavailable].
type Wait struct {
	Replicas int           // 0 for none
	Timeout  time.Duration // beyond that of the call
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
	return o, o.Check()
}

// Check returns what is wrong with the options as they are.
func (o *Options) Check() error {
	switch {
	case len(o.Addresses) == 0:
		return errors.New("redis: no address is given")
	case strings.ContainsAny(o.Prefix, "{}"):
		return fmt.Errorf("redis: the prefix %q holds a brace: in a Cluster braces say where a key is kept", o.Prefix)
	case o.Database < 0:
		return fmt.Errorf("redis: the database %d is less than 0", o.Database)
	case o.Database != 0 && o.Sentinel == "" && len(o.Addresses) > 1:
		return fmt.Errorf("redis: a Cluster has no database %d, only 0", o.Database)
	case o.Wait.Replicas < 0 || o.Wait.Replicas > 0 && o.Wait.Timeout < time.Millisecond:
		return errors.New("redis: to wait for replicas takes their number, and a timeout of a millisecond or more")
	case o.Timeout < 0 || o.History < 0:
		return errors.New("redis: the timeout and the length of a history are not less than 0")
	case o.History > MaxHistory:
		return fmt.Errorf("redis: a history of %d entries is longer than %d", o.History, MaxHistory)
	}
	return nil
}

// KeyPrefix returns what the name of every key begins with.
func (o *Options) KeyPrefix() string { return cmp.Or(o.Prefix, DefaultPrefix) }

// where names the servers in messages.
func (o *Options) where() string {
	at := strings.Join(o.Addresses, ", ")
	if o.Sentinel != "" {
		return "master " + o.Sentinel + " of sentinels " + at
	}
	return at
}

// The queue of a connection: rueidis does not give up a call that waits for a place in
// it. There are always places: no more calls than half of them are under way, and a
// connection whose server says nothing is closed.
const (
	ringScale = 13 // 2^13 places
	maxCalls  = 1 << (ringScale - 1)
)

// gather is how long a connection gathers commands, while several are under way, before it
// sends them: fewer and larger pieces cost both sides less.
const flushDelay = 100 * time.Microsecond

// keepAlive is how often a silent connection is asked whether it lives.
const keepAlive = 300 * time.Millisecond

// clientOption returns how to connect: with the access of the moment, whenever that is.
func (o *Options) clientOption() rueidis.ClientOption {
	return rueidis.ClientOption{
		InitAddress:       o.Addresses,
		AuthCredentialsFn: o.credentials,
		SelectDB:          o.Database,
		TLSConfig:         o.TLS, // says to a Cluster which ports are meant
		ClientName:        "limitkeeper",
		ClientSetInfo:     rueidis.DisableClientSetInfo, // a server of 7.2 or later logs it when it is not allowed
		Sentinel: rueidis.SentinelOption{MasterSet: o.Sentinel, TLSConfig: toSentinel,
			Dialer: o.dialer(), TopologyRefreshInterval: topologyEvery},
		Dialer:            o.dialer(),
		DialCtxFn:         o.dial,
		ConnWriteTimeout:  o.Timeout,
		RingScaleEachConn: ringScale,
		MaxFlushDelay:     flushDelay,
		PipelineMultiplex: -1, // one connection: what several callers ask at once goes in one piece
		ClusterOption:     rueidis.ClusterOption{ShardsRefreshInterval: topologyEvery},
		DisableCache:      true,
		DisableRetry:      true, // nothing is queued while a server is away
	}
}

func (o *Options) dialer() net.Dialer { return net.Dialer{Timeout: o.Timeout, KeepAlive: keepAlive} }

// toSentinel stands for the TLS of a sentinel. The client dials sentinels in the same way
// as servers, and asks in the same way for their credentials: this tells them apart.
var toSentinel = new(tls.Config)

// sentinelConn is a connection to a sentinel. Its address says so.
type (
	sentinelConn struct{ net.Conn }
	sentinelAddr struct{ net.Addr }
)

// RemoteAddr implements [net.Conn].
func (c sentinelConn) RemoteAddr() net.Addr { return sentinelAddr{c.Conn.RemoteAddr()} }

// dial connects with the TLS of the moment, whatever it was when the client was made.
func (o *Options) dial(ctx context.Context, address string, d *net.Dialer, of *tls.Config) (net.Conn, error) {
	c, err := dial(ctx, address, d, o.access.Load().TLS)
	if err == nil && of == toSentinel {
		c = sentinelConn{c}
	}
	return c, err
}

// credentials returns those of the moment for a connection that [Options.dial] has made.
func (o *Options) credentials(c rueidis.AuthCredentialsContext) (rueidis.AuthCredentials, error) {
	a := o.access.Load()
	if _, ok := c.Address.(sentinelAddr); ok {
		return rueidis.AuthCredentials{Username: a.SentinelUsername, Password: a.SentinelPassword}, nil
	}
	return rueidis.AuthCredentials{Username: a.Username, Password: a.Password}, nil
}

// dial connects to a host and port, or to a unix socket.
func dial(ctx context.Context, address string, d *net.Dialer, t *tls.Config) (net.Conn, error) {
	if strings.HasPrefix(address, "/") {
		return d.DialContext(ctx, "unix", address)
	}
	if t != nil {
		return (&tls.Dialer{NetDialer: d, Config: t}).DialContext(ctx, "tcp", address)
	}
	return d.DialContext(ctx, "tcp", address)
}

// explain says what in the options an error while connecting may mean.
func (o *Options) explain(err error) error {
	told, _ := rueidis.IsRedisErr(err)
	said := func(what string) bool { return told != nil && strings.HasPrefix(told.Error(), what) }
	a := o.access.Load()
	switch {
	case (said("NOAUTH") || said("WRONGPASS")) && a.Password == "" && a.SentinelPassword == "":
		return fmt.Errorf("it wants a password, and none is configured: %w", err)
	case said("NOPERM") && o.Sentinel != "":
		return fmt.Errorf("a user has not all the rights that are needed, of the sentinels or of Redis, there for keys that begin with %q: %w", o.Prefix, err)
	case said("NOPERM"):
		return fmt.Errorf("the user has not all the rights that are needed, or not for keys that begin with %q: %w", o.Prefix, err)
	case o.Sentinel != "" && said("unknown command") && strings.Contains(told.Error(), "SENTINEL"):
		return fmt.Errorf("it is no sentinel: %w", err)
	case strings.HasSuffix(err.Error(), unexpectedReply+"21") && o.TLS == nil: // so begins an alert of TLS
		return fmt.Errorf("it wants TLS: %w", err)
	case strings.Contains(err.Error(), unexpectedReply):
		return fmt.Errorf("what answers there is not Redis: %w", err)
	case errors.Is(err, io.EOF), errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		if o.TLS == nil {
			return fmt.Errorf("it has hung up: does it want TLS? %w", err)
		}
		return fmt.Errorf("it has hung up: does it want another certificate, or one at all? %w", err)
	case !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, os.ErrDeadlineExceeded):
		return err
	case o.TLS != nil:
		return fmt.Errorf("no answer within %v: is it there, and does it speak TLS? %w", o.Timeout, err)
	}
	return fmt.Errorf("no answer within %v: is it there, and does it want TLS? %w", o.Timeout, err)
}

// notRedis is what rueidis says of an answer that is not of Redis, before its first byte.
const unexpectedReply = "received unknown message type: "

func (o *Options) connect() (rueidis.Client, error) { return rueidis.NewClient(o.clientOption()) }
