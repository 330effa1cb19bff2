package redistest

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"
)

const (
	// limit bounds every wait.
	limit = 20 * time.Second

	// brief bounds one question to a server that may be paused.
	brief = time.Second

	pollEvery = 5 * time.Millisecond
)

// await calls ok until it returns nil. After limit it fails the test with the last error.
func await(tb testing.TB, what string, servers []*Server, ok func() error) {
	tb.Helper()
	for deadline := time.Now().Add(limit); ; time.Sleep(pollEvery) {
		err := ok()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			tb.Fatalf("%s: not within %v: %v\n%s", what, limit, err, lastLines(servers...))
		}
	}
}

// awaitMaster waits until all of the nodes that can answer name the same server, another one than not, and returns that server.
func awaitMaster(tb testing.TB, nodes []*Server, not *Server, master func(by *Server) (*Server, error)) (agreed *Server) {
	tb.Helper()
	await(tb, "master", nodes, func() error {
		agreed = nil
		for _, s := range nodes {
			if !s.Running() || s.paused.Load() {
				continue
			}
			named, err := master(s)
			switch {
			case err != nil:
				return err
			case named == not || agreed != nil && agreed != named:
				return fmt.Errorf("%s names %s", s.Addr(), named.Addr())
			}
			agreed = named
		}
		if agreed == nil {
			return errors.New("no node can answer")
		}
		return nil
	})
	return agreed
}

// lastLines returns the last lines of the servers' logs.
func lastLines(servers ...*Server) string {
	const most = 15
	var b strings.Builder
	for _, s := range servers {
		log, err := os.ReadFile(s.logPath())
		if err != nil {
			log = []byte(err.Error())
		}
		lines := strings.Split(strings.TrimSpace(string(log)), "\n")
		fmt.Fprintf(&b, "--- log of %s\n%s\n", s.Addr(), strings.Join(lines[max(0, len(lines)-most):], "\n"))
	}
	return b.String()
}
