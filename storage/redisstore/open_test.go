package redisstore_test

import (
	"crypto/tls"
	"crypto/x509"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/internal/freeport"
	"github.com/limitkeeper/limitkeeper/storage/redisstore"
	"github.com/limitkeeper/limitkeeper/storage/redisstore/redistest"
)

// Open returns one line that names the cause, within the timeout. A failure means that an operator does
// not learn what to change.
func TestOpenErrors(t *testing.T) {
	server, secret, secure := redistest.Start(t), redistest.Start(t, "--requirepass", "secret"), redistest.StartTLS(t)
	secret.Do(t, "ACL", "SETUSER", "elsewhere", "on", ">secret", "~elsewhere:*", "&*", "+@all")
	secret.Do(t, "ACL", "SETUSER", "scriptless", "on", ">secret", "~*", "&*", "+@all", "-evalsha")
	web := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(web.Close)
	other := redistest.Start(t)
	other.Do(t, "SET", redisstore.DefaultPrefix+"{registry}format", "0")
	paused := redistest.Start(t)
	paused.Pause()
	for _, c := range []struct {
		name string
		o    redisstore.Options
		want string // part of the error
	}{
		{"no address", redisstore.Options{}, "no address"},
		{"no listener", redisstore.Options{Addresses: []string{deadAddress(t)}}, "refused"},
		{"no such host", redisstore.Options{Addresses: []string{"no-such-host.invalid:6379"}}, "no-such-host.invalid"},
		{"no such socket", redisstore.Options{Addresses: []string{"/no/such/socket"}}, "/no/such/socket"},
		{"no answer", redisstore.Options{Addresses: []string{paused.Addr()}}, "no answer"},
		{"no password", redisstore.Options{Addresses: []string{secret.Addr()}}, "NOAUTH"},
		{"wrong password", redisstore.Options{Addresses: []string{secret.Addr()}, Password: "guess"}, "WRONGPASS"},
		{"no such user", redisstore.Options{Addresses: []string{secret.Addr()}, Username: "nobody", Password: "secret"}, "WRONGPASS"},
		{"user without password", redisstore.Options{Addresses: []string{secret.Addr()}, Username: "elsewhere"}, "none is configured: WRONGPASS"},
		{"user without EVALSHA", redisstore.Options{Addresses: []string{secret.Addr()}, Username: "scriptless", Password: "secret"}, "evalsha"},
		{"user with another prefix", redisstore.Options{Addresses: []string{secret.Addr()}, Username: "elsewhere", Password: "secret"}, `with the prefix "limitkeeper:"`},
		{"sentinel user without permissions", redisstore.Options{Addresses: []string{fakeServer(t, "-NOPERM this user has no permissions to run the 'hello' command\r\n")}, Sentinel: "main"}, "of the sentinels"},
		{"TLS alert", redisstore.Options{Addresses: []string{fakeServer(t, "\x15\x03\x01\x00\x02\x02\x46")}}, "requires TLS"},
		{"connection closed", redisstore.Options{Addresses: []string{fakeServer(t, "")}}, "closed the connection: does it require TLS"},
		{"not a sentinel, Redis 6.2", redisstore.Options{Addresses: []string{fakeServer(t, "-ERR unknown command `SENTINEL`\r\n")}, Sentinel: "main"}, "not a sentinel"},
		{"not Redis", redisstore.Options{Addresses: []string{web.Listener.Addr().String()}}, "does not speak the Redis protocol"},
		{"unknown authority", redisstore.Options{Addresses: []string{secure.TLSAddr()}, TLS: &tls.Config{RootCAs: x509.NewCertPool()}}, "certificate"},
		{"TLS to a plain port", redisstore.Options{Addresses: []string{server.Addr()}, TLS: &tls.Config{}}, "tls"},
		{"plain TCP to a TLS port", redisstore.Options{Addresses: []string{secure.TLSAddr()}}, ""},
		{"no such database", redisstore.Options{Addresses: []string{server.Addr()}, Database: 99}, "DB index"},
		{"negative database", redisstore.Options{Addresses: []string{server.Addr()}, Database: -1}, "database"},
		{"database on a Cluster", redisstore.Options{Addresses: []string{server.Addr(), other.Addr()}, Database: 1}, "database"},
		{"prefix with a brace", redisstore.Options{Addresses: []string{server.Addr()}, Prefix: "a{b}"}, "brace"},
		{"other format", redisstore.Options{Addresses: []string{other.Addr()}}, "format"},
		{"not a sentinel", redisstore.Options{Addresses: []string{server.Addr()}, Sentinel: "main"}, "not a sentinel"},
		{"two servers without Cluster", redisstore.Options{Addresses: []string{server.Addr(), secret.Addr()}, Password: "secret"}, "cluster"},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.o.Timeout = 500 * time.Millisecond
			begun := time.Now()
			s, err := redisstore.Open(t.Context(), c.o)
			if err == nil {
				_ = s.Close()
				t.Fatal("Open: no error")
			}
			t.Logf("after %v: %v", time.Since(begun).Round(time.Millisecond), err)
			text := err.Error()
			if !strings.Contains(strings.ToLower(text), strings.ToLower(c.want)) || strings.Contains(text, "\n") {
				t.Errorf("Open: %q, want one line with %q", text, c.want)
			}
			if took := time.Since(begun); took > 10*time.Second {
				t.Errorf("Open took %v", took)
			}
		})
	}
}

// The store works over every kind of connection that the options allow.
func TestConnections(t *testing.T) {
	server, secure, secret := redistest.Start(t), redistest.StartTLS(t), redistest.Start(t, "--requirepass", "secret")
	for name, o := range map[string]redisstore.Options{
		"TLS":         {Addresses: []string{secure.TLSAddr()}, TLS: &tls.Config{RootCAs: authorities(t, secure.CAFile())}},
		"unix socket": {Addresses: []string{server.Socket()}},
		"password":    {Addresses: []string{secret.Addr()}, Password: "secret"},
		"user":        {Addresses: []string{secret.Addr()}, Username: "default", Password: "secret"},
		"database":    {Addresses: []string{server.Addr()}, Database: 3},
		"prefix":      {Addresses: []string{server.Addr()}, Prefix: "another:"},
		"host name":   {Addresses: []string{strings.Replace(server.Addr(), "127.0.0.1", "localhost", 1)}},
	} {
		t.Run(name, func(t *testing.T) { exerciseStore(t, openFaulty(t, o)) })
	}
	for number, want := range map[string]string{"0": "limitkeeper:", "3": "limitkeeper:"} {
		if got := server.Do(t, "EVAL", "redis.call('SELECT', ARGV[1]) return redis.call('KEYS', '*')", "0", number); !strings.Contains(got, want) {
			t.Errorf("database %s has the keys %q, want some with %q", number, got, want)
		}
	}
}

// exerciseStore uses most functions of a store.
func exerciseStore(t *testing.T, s *redisstore.Store) {
	t.Helper()
	w := newWorld(t, s, 2)
	for _, id := range []string{"", "id", "id"} {
		for _, k := range w.keys[:3] {
			if v, err := s.Consume(t.Context(), consumption(&k, id, true)); err != nil || !v.Allowed {
				t.Fatalf("Consume: %v, %v; want it allowed", v, err)
			}
		}
	}
	if used, entries := w.used(t, w.keys[0].ID, 0), w.entries(t, w.keys[0].ID, 0); used != 2 || entries != 2 {
		t.Errorf("counted %d requests, %d in the history; want 2", used, entries)
	}
	w.moveKey(t, 0, w.keys[2].UserID)
	if used, entries := w.used(t, w.keys[0].ID, 0), w.entries(t, w.keys[0].ID, 0); used != 2 || entries != 2 {
		t.Errorf("counted %d requests after the key has moved, %d in the history; want 2", used, entries)
	}
	if _, err := s.KeyByDigest(t.Context(), w.keys[0].Digest); err != nil {
		t.Errorf("KeyByDigest: %v", err)
	}
	if _, n, err := s.Keys(t.Context(), w.account, core.KeyFilter{UserID: w.keys[2].UserID}, core.Page{Number: 1, Size: 10}); n != 3 || err != nil {
		t.Errorf("Keys: %d, %v; want 3", n, err)
	}
	err := s.Update(t.Context(), w.account, func(tx core.Tx) error { return tx.DeleteUser(w.keys[2].UserID) })
	if err != nil {
		t.Errorf("DeleteUser: %v", err)
	}
	if _, _, err := s.Accounts(t.Context(), core.Page{Number: 1, Size: 10}); err != nil {
		t.Errorf("Accounts: %v", err)
	}
	full := []core.Ranked{{CounterID: core.CounterID{Account: w.account, UserID: 1}, Fills: []core.Fill{{Meter: core.MeterRequests, Percent: 90, End: core.NoEnd}}}}
	if err := s.Rank(t.Context(), w.account, full, false); err != nil {
		t.Errorf("Rank: %v", err)
	}
	if err := s.CompleteRanking(t.Context(), w.account, time.Now()); err != nil {
		t.Errorf("CompleteRanking: %v", err)
	}
	r, err := s.Ranking(t.Context(), w.account, core.RankingQuery{From: core.RankFrom, At: time.Now()}, core.Page{Number: 1, Size: 10})
	if r.Total != 1 || err != nil {
		t.Errorf("Ranking: %d, %v; want 1", r.Total, err)
	}
	trusting := &watcher{}
	s.Watch(trusting)
	trusting.awaitTrust(t)
}

// moveKey moves a key to another user.
func (w *world) moveKey(t testing.TB, key int, user int64) {
	t.Helper()
	err := w.s.Update(t.Context(), w.account, func(tx core.Tx) error {
		k, err := tx.Key(w.keys[key].ID)
		if err != nil {
			return err
		}
		k.UserID = user
		return tx.PutKey(k)
	})
	if err != nil {
		t.Fatalf("Update: %v", err)
	}
	w.keys[key].UserID = user
}

// fakeServer returns an address that answers every request with the same bytes and hangs up.
func fakeServer(t testing.TB, what string) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = conn.Read(make([]byte, 4096))
			_, _ = io.WriteString(conn, what)
			_ = conn.Close()
		}
	}()
	return l.Addr().String()
}

// deadAddress returns an address without listener.
func deadAddress(t testing.TB) string { return "127.0.0.1:" + freeport.Take(t) }
