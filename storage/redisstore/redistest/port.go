package redistest

import (
	"math/rand/v2"
	"net"
	"sync"
	"testing"
)

const (
	loopback = "127.0.0.1"

	// A node of a cluster has its bus at its port and this.
	busOffset = 10000

	// Ports are taken from below those that systems give to outgoing connections, from
	// 32768: a server that restarts finds its own again.
	firstPort, lastPort = 10000, 21999
)

// given are the ports that this process has given away. None is given twice, since its
// server may be down for a while.
var given sync.Map

// freePort returns a port that nobody listens at, nor at its bus port.
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
