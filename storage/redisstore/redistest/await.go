package redistest

import (
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

// poll calls ok until it returns nil. After limit it returns the last error.
func poll(ok func() error) error {
	for deadline := time.Now().Add(limit); ; time.Sleep(pollEvery) {
		err := ok()
		if err == nil {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("not within %v: %w", limit, err)
		}
	}
}

// await polls. It fails the test after limit.
func await(tb testing.TB, what string, servers []*Server, ok func() error) {
	tb.Helper()
	if err := poll(ok); err != nil {
		tb.Fatalf("%s: %v\n%s", what, err, lastLines(servers...))
	}
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
