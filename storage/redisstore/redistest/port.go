package redistest

import (
	"math/rand/v2"
	"net"
	"sync"
	"testing"
)

const (
	loopback = "127.0.0.1"

	// busOffset is the distance from the port of a cluster node to its bus port.
	busOffset = 10000

	// Ports are below 32768, where systems start to allocate outgoing connections. So a server finds its
	// port free after a restart.
	firstPort, lastPort = 10000, 21999
)

// given holds the ports that this process has handed out. They are not reused, since their servers may
// restart.
var given sync.Map

// freePort returns a port without listener, whose bus port has none, either.
func freePort(tb testing.TB) int {
	tb.Helper()
	for range 1000 {
		port := firstPort + rand.IntN(lastPort-firstPort+1)
		if !isFree(port) || !isFree(port+busOffset) {
			continue
		}
		_, portGiven := given.LoadOrStore(port, true)
		_, busGiven := given.LoadOrStore(port+busOffset, true)
		if !portGiven && !busGiven {
			return port
		}
	}
	tb.Fatalf("no free port from %d to %d", firstPort, lastPort)
	return 0
}

func isFree(port int) bool {
	l, err := net.Listen("tcp", address(port))
	if err != nil {
		return false
	}
	return l.Close() == nil
}
