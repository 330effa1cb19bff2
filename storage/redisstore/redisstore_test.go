package redisstore_test

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/redisstore"
	"github.com/limitkeeper/limitkeeper/storage/redisstore/redistest"
	"github.com/limitkeeper/limitkeeper/storage/storetest"
)

// The store keeps every promise of core.Store on a single server.
func TestConformance(t *testing.T) {
	server := redistest.Start(t)
	storetest.Run(t, storeOpener(redisstore.Options{Addresses: []string{server.Addr()}}))
}

// The store keeps every promise of core.Store on a Cluster.
func TestConformanceOnCluster(t *testing.T) {
	cluster := redistest.StartCluster(t)
	storetest.Run(t, storeOpener(redisstore.Options{Addresses: cluster.Addrs()}))
}

var stores atomic.Int64

// storeOpener returns a function that opens an empty store, under its own prefix.
func storeOpener(o redisstore.Options) func(t *testing.T) storetest.Opened {
	return func(t *testing.T) storetest.Opened {
		o := o
		o.Prefix = fmt.Sprintf("test%d:", stores.Add(1))
		return storetest.Opened{
			Store:  open(t, o),
			Reopen: func(t testing.TB) core.Store { return open(t, o) },
		}
	}
}

// open opens a store with a timeout for a busy machine.
func open(t testing.TB, o redisstore.Options) *redisstore.Store {
	t.Helper()
	if o.Timeout == 0 {
		o.Timeout = 10 * time.Second
	}
	s, err := redisstore.Open(t.Context(), o)
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	return s
}
