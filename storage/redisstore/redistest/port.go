package redistest

import (
	"math/rand/v2"
	"net"
	"sync/atomic"
	"testing"
)

const (
	loopback = "127.0.0.1"

	// busOffset is the distance from the port of a cluster node to its bus port.
	busOffset = 10000

	// Ports, and bus ports, are below 32768, where systems start to allocate outgoing connections. So a server finds
	// its port free after a restart.
	firstPort, ports = 10000, 10000
)

// given counts the ports that this process has handed out, from a random one on. They are not reused, since their
// servers may restart.
var given atomic.Int64

func init() { given.Store(rand.Int64N(ports)) }

// freePort returns a port without listener, whose bus port has none, either.
func freePort(tb testing.TB) int {
	tb.Helper()
	for range 1000 {
		port := firstPort + int(given.Add(1)%ports)
		if isFree(port) && isFree(port+busOffset) {
			return port
		}
	}
	tb.Fatalf("no free port from %d on", firstPort)
	return 0
}

func isFree(port int) bool {
	l, err := net.Listen("tcp", address(port))
	if err != nil {
		return false
	}
	return l.Close() == nil
}
