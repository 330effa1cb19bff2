package redisstore_test

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/redisstore"
	"github.com/limitkeeper/limitkeeper/storage/redisstore/redistest"
)

// A store of another format is refused in one line that has both formats and says what to do, and stays as it is. A failure means
// that counters are misread.
func TestOtherFormat(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	for _, format := range []string{"5", "v1", "v2", "v3", "v9"} {
		want := fmt.Sprintf(`has the format %q, this version of Limitkeeper supports "v4": run the version that wrote the data, or choose`, format)
		server.Do(t, "SET", "limitkeeper:{registry}format", format)
		s, err := redisstore.Open(t.Context(), redisstore.Options{Addresses: []string{server.Addr()}, Timeout: 5 * time.Second})
		if err == nil {
			_ = s.Close()
		}
		if err == nil || strings.Contains(err.Error(), "\n") || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want one line with %q", err, want)
		}
		if got := strings.Fields(server.Do(t, "KEYS", "*")); len(got) != 1 || strings.TrimSpace(server.Do(t, "GET", got[0])) != format {
			t.Errorf("got the names %q, want the format only", got)
		}
	}
}

// A node that runs while another version upgrades the data refuses every call within about a second, and says so once in the
// log and in its health. Otherwise it would misread the data of the later version.
func TestFormatChanges(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	o, log := logging(server.Addr())
	s := openFaulty(t, o)
	call := func() error {
		_, _, err := s.Accounts(t.Context(), core.Page{Number: 1, Size: 1})
		return err
	}
	for range 2 {
		server.Do(t, "SET", "limitkeeper:{registry}format", "v9")
		until(t, "the refusal", func() bool { return errors.Is(call(), core.ErrUnavailable) })
		if err := s.Health(t.Context()); err == nil || !strings.Contains(err.Error(), "Another version of Limitkeeper has upgraded the data") {
			t.Errorf("got the health %v, want that another version has upgraded the data", err)
		}
		if st := s.Stats(); st.Lost {
			t.Error("the store says that Redis has lost data")
		}
		server.Do(t, "SET", "limitkeeper:{registry}format", "v4")
		until(t, "the end of the refusal", func() bool { return call() == nil && s.Health(t.Context()) == nil })
	}
	if n := strings.Count(log.String(), "has upgraded the data"); n != 2 {
		t.Errorf("the log has %d lines about two upgrades, want 2:\n%s", n, log)
	}
}

// TestFormatInDocs: the table of formats in docs/operations.md has the format that a new store writes.
func TestFormatInDocs(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	s, err := redisstore.Open(t.Context(), redisstore.Options{Addresses: []string{server.Addr()}, Timeout: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	format := strings.TrimSpace(server.Do(t, "GET", "limitkeeper:{registry}format"))
	docs, err := os.ReadFile("../../docs/operations.md")
	if row := fmt.Sprintf("\n| Redis | %s | | the Redis key `limitkeeper:{registry}format`, `%s` |", strings.TrimPrefix(format, "v"), format); err != nil || !strings.Contains(string(docs), row) {
		t.Errorf("docs/operations.md has no row %q, %v", row, err)
	}
}
