package redisstore

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"
)

// toSentinel marks connections to sentinels. The client uses the same dial and credentials functions for
// sentinels and servers, but passes this TLS config only for sentinels.
var toSentinel = new(tls.Config)

// sentinelConn is a connection to a sentinel. The type of its address marks it for [Options.credentials].
type (
	sentinelConn struct{ net.Conn }
	sentinelAddr struct{ net.Addr }
)

// RemoteAddr implements [net.Conn].
func (c sentinelConn) RemoteAddr() net.Addr { return sentinelAddr{c.Conn.RemoteAddr()} }

// dial connects to host:port, with the current TLS config, or to a unix socket.
func (o *Options) dial(ctx context.Context, address string, d *net.Dialer, of *tls.Config) (c net.Conn, err error) {
	switch t := o.access.Load().TLS; {
	case strings.HasPrefix(address, "/"):
		c, err = d.DialContext(ctx, "unix", address)
	case t != nil:
		c, err = (&tls.Dialer{NetDialer: d, Config: t}).DialContext(ctx, "tcp", address)
	default:
		c, err = d.DialContext(ctx, "tcp", address)
	}
	switch {
	case err != nil:
		return nil, err
	case of == toSentinel:
		return sentinelConn{c}, nil
	}
	return o.conns.track(c), nil
}

// credentials returns the current credentials for a connection that [Options.dial] has made.
func (o *Options) credentials(c rueidis.AuthCredentialsContext) (rueidis.AuthCredentials, error) {
	a := o.access.Load()
	if _, ok := c.Address.(sentinelAddr); ok {
		return rueidis.AuthCredentials{Username: a.SentinelUsername, Password: a.SentinelPassword}, nil
	}
	return rueidis.AuthCredentials{Username: a.Username, Password: a.Password}, nil
}

// Managed services put one address in front of a master and its replicas, and move the address at a failover. Open
// connections stay at the former master. An error that means "wrong server" closes them all, and the client dials again.

// conns are the open connections to servers.
type conns struct {
	open    sync.Map     // of *trackedConn
	dropped atomic.Int64 // when dropAll last closed the connections, Unix nanoseconds
}

// trackedConn is an open connection to a server.
type trackedConn struct {
	net.Conn
	in *conns
}

// Close implements [net.Conn].
func (c *trackedConn) Close() error {
	c.in.open.Delete(c)
	return c.Conn.Close()
}

// track returns the connection as an element of cs until it is closed.
func (cs *conns) track(c net.Conn) net.Conn {
	t := &trackedConn{c, cs}
	cs.open.Store(t, nil)
	return t
}

// dropEvery is the least time between two closings of all connections: a master may lack its replicas for long.
const dropEvery = time.Second

// dropAll closes all connections, at most once in dropEvery.
func (cs *conns) dropAll() {
	now, last := time.Now().UnixNano(), cs.dropped.Load()
	if now-last < int64(dropEvery) || !cs.dropped.CompareAndSwap(last, now) {
		return
	}
	cs.open.Range(func(c, _ any) bool {
		_ = c.(*trackedConn).Close()
		return true
	})
}

// wrongServer are the first words of errors that another server behind the same address may not return. Other errors concern the
// server that the address names: LOADING ends when the data is loaded, OOM and MISCONF need an operator, and the client follows MOVED and
// CLUSTERDOWN.
var wrongServer = []string{
	"READONLY",   // a replica refuses a write
	"MASTERDOWN", // a replica without its master refuses a read
	"UNBLOCKED",  // a master has become a replica while a call waited for replicas
	"NOREPLICAS", // a master lacks replicas: they may follow a new master
}

// errReplica means that the server is a replica.
var errReplica = errors.New("the server is a replica, not the master")

// noteReply closes all connections after an error that means "wrong server". A Cluster and Sentinel have addresses for each
// server, which the client follows.
func (s *Store) noteReply(err error) {
	reply, ok := rueidis.IsRedisErr(err)
	if !ok || reply.IsNil() || !s.oneAddress() {
		return
	}
	if kind, _, _ := strings.Cut(reply.Error(), " "); slices.Contains(wrongServer, kind) {
		s.o.conns.dropAll()
	}
}

// oneAddress reports whether one address names the master, whichever server that is.
func (s *Store) oneAddress() bool {
	return s.o.Sentinel == "" && s.client.Mode() != rueidis.ClientModeCluster
}
