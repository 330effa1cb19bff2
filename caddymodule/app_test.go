package caddymodule

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"

	"github.com/limitkeeper/limitkeeper/core"
)

// provisioned returns an app on the store in memory with the name, as Caddy has it
// before it is started.
func provisioned(t *testing.T, name, rate string) *App {
	t.Helper()
	ctx, cancel := caddy.NewContext(caddy.Context{Context: context.Background()})
	t.Cleanup(cancel)
	a := &App{StoreRaw: json.RawMessage(`{"module": "memory", "name": "` + name + `"}`), ServiceRateLimit: rate}
	if err := a.Provision(ctx); err != nil {
		t.Fatal(err)
	}
	return a
}

// Two configs share one store. A reference released twice closes the database of the running config.
// A reference never released keeps the directory locked. An app that acquires the store too late
// answers 503 during a reload.
func TestAppLifecycle(t *testing.T) {
	ready := func(a *App) bool { _, err := a.service(); return err == nil }
	do := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	old := provisioned(t, "life", "1/1h")
	if ready(old) || refs("life") != 0 {
		t.Fatalf("provisioning opened the store")
	}
	do(old.Start())
	if !ready(old) || refs("life") != 1 {
		t.Fatalf("started: ready %v, held %d times; want true, once", ready(old), refs("life"))
	}

	t.Run("rejected before it starts", func(t *testing.T) {
		a := provisioned(t, "life", "off")
		if !ready(a) || refs("life") != 2 {
			t.Errorf("ready %v, held %d times; want true, twice: the store is open", ready(a), refs("life"))
		}
		for range 2 {
			do(a.Cleanup())
		}
		if refs("life") != 1 {
			t.Errorf("held %d times after cleanup, want once", refs("life"))
		}
	})
	t.Run("rejected after it has started", func(t *testing.T) {
		a := provisioned(t, "life", "off")
		do(a.Start())
		do(a.Cleanup()) // without Stop: Caddy does so when its own set-up fails
		k := &core.OwnerKey{ID: "x" + time.Now().String()}
		s, err := old.service()
		do(err)
		s.Admit(k)
		if _, ok := s.Admit(k); ok || refs("life") != 1 {
			t.Errorf("the rate of the rejected config is in force, or the store is held %d times", refs("life"))
		}
	})
	t.Run("never provisioned", func(t *testing.T) {
		do(new(App).Cleanup())
		do(new(App).Stop())
	})

	next := provisioned(t, "life", "")
	do(next.Start())
	do(old.Stop())
	do(old.Cleanup())
	if !ready(next) || refs("life") != 1 {
		t.Errorf("after a reload: ready %v, held %d times; want true, once", ready(next), refs("life"))
	}
	do(next.Stop())
	do(next.Cleanup())
	if refs("life") != 0 {
		t.Errorf("held %d times at the end", refs("life"))
	}
}

// Provision reports an invalid app, and the app then holds no reference to the store.
func TestAppErrors(t *testing.T) {
	for _, tc := range []struct{ app, want string }{
		{`{"store": {"module": "frob"}}`, `there is no store "frob" in this build: want badger or redis`},
		{`{"store": {"module": "badger", "durability": "eternal"}}`, "want process or power"},
		{`{"store": {"module": "badger", "max_history": -1}}`, "max_history"},
		{`{"store": {"module": "badger", "max_history": 20}}`, "want at least 67108864 bytes, got 20"},
		{`{"store": {"module": "badger", "min_free": 20}}`, "min_free: want at least 33554432 bytes, got 20"},
		{`{"store": {"module": "badger", "dir": "{env.NOT_SET_ANYWHERE}"}}`, "directory of the store"},
		{`{"key_cache": -1}`, "key_cache"},
		{`{"max_plans": -1}`, "max_plans"},
		{`{"history_retention": -1}`, "history_retention"},
		{`{"service_rate_limit": "10"}`, "service_rate_limit"},
		{`{"thresholds": [100, 80]}`, "thresholds: want the thresholds in ascending order, got 80 after 100"},
		{`{"accounts": [{"name": "a", "key": "lk_short"}]}`, `key of account "a": an owner's key is lk_ and 29 letters or digits`},
		{`{"accounts": [{"name": "a", "key": "{env.NOT_SET_ANYWHERE}"}]}`, `key of account "a"`},
		{`{"accounts": [{"key": "x"}]}`, "name"},
	} {
		ctx, cancel := caddy.NewContext(caddy.Context{Context: context.Background()})
		a := new(App)
		if err := caddy.StrictUnmarshalJSON([]byte(tc.app), a); err != nil {
			t.Fatal(err)
		}
		err := a.Provision(ctx)
		if err == nil || !strings.Contains(err.Error(), tc.want) || strings.Contains(err.Error(), "lk_short") {
			t.Errorf("%s: got %v, want %q", tc.app, err, tc.want)
		}
		if err := a.Cleanup(); err != nil {
			t.Errorf("%s: cleanup: %v", tc.app, err)
		}
		cancel()
	}
}
