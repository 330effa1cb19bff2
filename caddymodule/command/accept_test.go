package command

import (
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"

	"github.com/limitkeeper/limitkeeper/caddymodule/caddytest"
	"github.com/limitkeeper/limitkeeper/core/secrets"
	"github.com/limitkeeper/limitkeeper/storage/redisstore/redistest"
)

// accept runs `limitkeeper store accept` against the server.
func (s *server) accept() (string, error) {
	return execute("store", storeCommand, "accept", "--address", s.Admin)
}

// After Redis has lost data the server answers 503, also after a restart of the server, until an
// operator accepts the loss. The log has one line, and a metric shows the refusal.
func TestStoreAccept(t *testing.T) {
	redis := redistest.Start(t)
	s := newServer(t)
	owner := secrets.NewOwnerSecret()
	options := "store redis " + redis.Addr() + caddytest.AccountOption("acme", owner)
	s.Start(options, caddytest.Both("respond ok"))
	ten := s.Tenant("default", 1000)
	health := func() int { return s.Get("/functions/v1/health").StatusCode }
	if got := s.Validate(ten.Owner, ten.Secret).StatusCode; got != 200 {
		t.Fatalf("got %d before the loss, want 200", got)
	}
	if out, err := s.accept(); err != nil || out != "The store has lost nothing.\n" {
		t.Errorf("got %q, %v before the loss", out, err)
	}

	redis.Do(t, "FLUSHALL")
	caddytest.Eventually(t, "the refusal", func() bool { return health() == 503 })
	if got := s.Get("/functions/v1/health", "X-Forwarded-Proto: https"); !strings.Contains(got.Text, "Redis has lost data") {
		t.Errorf("got the health %s, want one that says that Redis has lost data", got.Text)
	}
	if out, err := execute("account", accountCommand, "list", "--address", s.Admin); err == nil || !strings.Contains(err.Error(), "`limitkeeper store accept`: "+redis.Addr()+": it was emptied") || strings.Contains(err.Error(), "\n") {
		t.Errorf("account list: got %q, %v; want one line with the loss and the command", out, err)
	}
	for range 3 {
		if got := s.Validate(ten.Owner, ten.Secret).StatusCode; got != 503 {
			t.Errorf("got %d after the loss, want 503", got)
		}
	}
	s.WaitLog("redis has lost data: requests are refused", 1)
	if caddytest.Sample(s.Scrape(), "limitkeeper_redis_lost") != 1 || caddytest.Sample(s.Scrape(), "limitkeeper_redis_losses_total") != 1 {
		t.Errorf("want one loss among\n%s", s.Scrape())
	}

	s.Must(caddy.Stop())
	s.Start(options, caddytest.Both("respond ok"))
	if got := health(); got != 503 {
		t.Errorf("got %d from a server that was restarted, want 503", got)
	}
	out, err := s.accept()
	if err != nil || !strings.Contains(out, "Accepted "+redis.Addr()+": it was emptied") {
		t.Errorf("got %q, %v; want what was lost", out, err)
	}
	caddytest.Eventually(t, "the store to go on", func() bool { return health() == 200 })
	caddytest.Eventually(t, "the account of the config", func() bool { return s.Exists("acme") })
	if got := s.Validate(owner, ten.Secret).StatusCode; got != 200 { // the body says that there is no such key
		t.Errorf("got %d for a key that is gone, want 200", got)
	}
	if caddytest.Sample(s.Scrape(), "limitkeeper_redis_lost") != 0 {
		t.Errorf("want no loss among\n%s", s.Scrape())
	}
}

// The command fails with a clear error when the store is not on Redis.
func TestStoreAcceptElsewhere(t *testing.T) {
	s := newServer(t)
	s.Start("store memory", caddytest.Both("respond ok"))
	if out, err := s.accept(); err == nil || !strings.Contains(err.Error(), "not on Redis") {
		t.Errorf("got %q, %v; want an error", out, err)
	}
}
