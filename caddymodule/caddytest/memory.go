package caddytest

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/service"
	"github.com/limitkeeper/limitkeeper/storage/memstore"
)

func init() { caddy.RegisterModule(new(memoryModule)) }

// memoryModule is the module limitkeeper.store.memory: a store in memory that can be made to fail.
type memoryModule struct {
	Name string `json:"name,omitempty"`
}

// MemoryFails makes every store in memory fail.
var MemoryFails atomic.Bool

// MemoryTuned counts the calls of Tune.
var MemoryTuned atomic.Int32

func (*memoryModule) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "limitkeeper.store.memory", New: func() caddy.Module { return new(memoryModule) }}
}

func (m *memoryModule) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	d.Next()
	d.Args(&m.Name)
	return nil
}

func (m *memoryModule) PoolKey() string { return "memory " + m.Name }

func (m *memoryModule) Open(*slog.Logger, service.Tunables, *core.Clock) (core.Store, error) {
	if m.Name == "broken" {
		return nil, errors.New("the store is broken")
	}
	return &flakyStore{Store: memstore.New()}, nil
}

func (m *memoryModule) Tune(core.Store, service.Tunables) { MemoryTuned.Add(1) }

type flakyStore struct{ core.Store }

func (s *flakyStore) Consume(ctx context.Context, c *core.Consumption) (core.ConsumeResult, error) {
	if MemoryFails.Load() {
		return core.ConsumeResult{}, core.Unavailable(errors.New("pulled the plug"))
	}
	return s.Store.Consume(ctx, c)
}

func (s *flakyStore) Hold(ctx context.Context, account, id string) (*core.Hold, error) {
	if MemoryFails.Load() {
		return nil, core.Unavailable(errors.New("pulled the plug"))
	}
	return s.Store.Hold(ctx, account, id)
}
