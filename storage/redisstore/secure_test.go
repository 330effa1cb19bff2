package redisstore_test

import (
	"crypto/tls"
	"strings"
	"testing"
	"time"

	"github.com/limitkeeper/limitkeeper/storage/redisstore"
	"github.com/limitkeeper/limitkeeper/storage/redisstore/redistest"
)

// The store works over TLS on a Cluster, given one address, and after a failover.
func TestClusterTLS(t *testing.T) {
	t.Parallel()
	c := redistest.StartClusterTLS(t, append([]string{"--requirepass", "secret", "--masterauth", "secret"}, partialCoverage...)...)
	o := faulty(c.Nodes()[0].TLSAddr(), c.Nodes()[1].TLSAddr())
	o.TLS, o.Password = &tls.Config{RootCAs: authorities(t, c.Nodes()[0].CAFile())}, "secret"
	o.Wait = redisstore.Wait{Replicas: 1, Timeout: 500 * time.Millisecond}
	one := o
	one.Addresses = o.Addresses[:1]
	exerciseStore(t, openFaulty(t, one))
	s := openFaulty(t, o)
	exerciseStore(t, s)
	w := newWorld(t, s, 9)
	l := w.startLoad(t, 8)
	l.waits = true
	l.useAllKeys(t)
	t.Log(l.failOver(t, c))
	calls := l.stop()
	w.checkBounds(t, calls)
	w.checkExact(t, calls)
	told := &watcher{}
	s.Watch(told)
	told.awaitTrust(t)
}

// The store finds the master through sentinels with a password, also after a failover.
func TestSentinelPassword(t *testing.T) {
	t.Parallel()
	n := redistest.StartSentinelSecret(t, "guard", "--requirepass", "secret", "--masterauth", "secret")
	o := faulty(n.Addrs()...)
	o.Sentinel, o.SentinelPassword, o.Password = n.Name(), "guard", "secret"
	s := openFaulty(t, o)
	exerciseStore(t, s)
	told := &watcher{}
	s.Watch(told)
	told.awaitTrust(t)
	w := newWorld(t, s, 2)
	l := w.startLoad(t, 4)
	l.useAllKeys(t)
	master := n.Master()
	master.Kill()
	killed := time.Now()
	n.AwaitFailover(t, master)
	t.Logf("away for %v", l.awaitAllowed(t, killed))
	w.checkBounds(t, l.stop())
	told.awaitTrust(t)

	for password, want := range map[string]string{"": "NOAUTH", "secret": "WRONGPASS"} {
		o.SentinelPassword = password
		s, err := redisstore.Open(t.Context(), o)
		if err == nil {
			_ = s.Close()
		}
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("Open with the sentinels' password %q: %v, want one line with %s", password, err, want)
		}
	}
	o.SentinelPassword, o.SentinelUsername = "guard", "default"
	exerciseStore(t, openFaulty(t, o))
}
