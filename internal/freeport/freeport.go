// Package freeport chooses ports for the servers of tests. A process locks blocks of 100 ports, so that a test
// may start its server later, or restart it, while other tests run in the same process and in other ones.
package freeport

import (
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
)

const (
	// firstPort is the first of the ports 10000 to 19999. Their bus ports end at 29999, below 32768, where systems start to allocate
	// outgoing connections. So no outgoing connection takes a port before its server listens, or while the server restarts.
	firstPort = 10000

	blocks    = 100
	blockSize = 100 // ports that a process locks at once

	// busOffset is the distance from the port of a node of a Redis cluster to its bus port.
	busOffset = 10000
)

var (
	mu sync.Mutex

	// locks are the listeners on the first port of each block that this process holds. The end of the process closes them.
	locks []net.Listener

	next, end int // the ports of the newest block that no test has
)

// Take returns a port without listener, whose bus port has none, either. No other call returns the same port, in this process
// or in another one that runs at the same time. Take calls Fatalf of tb, such as a [testing.TB], when all blocks are locked.
func Take(tb interface {
	Fatalf(format string, args ...any)
}) string {
	mu.Lock()
	defer mu.Unlock()
	for {
		if next == end && !claim() {
			tb.Fatalf("no block of ports is free from %d on: this process has %d of %d", firstPort, len(locks), blocks)
			return ""
		}
		port := next
		next++
		if isFree(port) && isFree(port+busOffset) {
			return strconv.Itoa(port)
		}
	}
}

// claim locks a block and makes it the newest one. It tries every block, from a random one on.
func claim() bool {
	start := rand.IntN(blocks)
	for i := range blocks {
		first := firstPort + (start+i)%blocks*blockSize
		if lock, err := listen("127.0.0.1", first); err == nil {
			locks = append(locks, lock)
			next, end = first+1, first+blockSize
			return true
		}
	}
	return false
}

// isFree reports whether no socket listens on the port, on any address.
func isFree(port int) bool {
	ln, err := listen("", port)
	return err == nil && ln.Close() == nil
}

func listen(host string, port int) (net.Listener, error) {
	return net.Listen("tcp", net.JoinHostPort(host, strconv.Itoa(port)))
}
