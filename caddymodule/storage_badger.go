package caddymodule

import (
	"fmt"
	"log/slog"
	"path/filepath"

	"github.com/caddyserver/caddy/v2"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/badgerstore"
)

func init() { caddy.RegisterModule(new(BadgerStore)) }

// BadgerStore keeps everything in an embedded database in a directory of its own.
// Nothing else has to run. One process at a time can have the directory open.
type BadgerStore struct {
	// The directory. It is made if it does not exist. Placeholders are replaced.
	// Default: `limitkeeper` in Caddy's data directory.
	Dir string `json:"dir,omitempty"`

	// What an answered request survives, beside a crash of the process, which it
	// always does:
	//
	// - `process`: a power cut may lose the last second
	// - `power`: nothing is lost to a power cut; each commit waits for the disk
	//
	// Default: `process`. It may be changed by a reload.
	Durability string `json:"durability,omitempty"`

	durability badgerstore.Durability
}

// CaddyModule implements [caddy.Module].
func (*BadgerStore) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "limitkeeper.store.badger", New: func() caddy.Module { return new(BadgerStore) }}
}

// Provision implements [caddy.Provisioner]. It opens nothing.
func (b *BadgerStore) Provision(caddy.Context) (err error) {
	if b.Dir, err = caddy.NewReplacer().ReplaceOrErr(b.Dir, true, true); err != nil {
		return fmt.Errorf("directory of the store: %w", err)
	}
	if b.Dir == "" {
		b.Dir = filepath.Join(caddy.AppDataDir(), "limitkeeper")
	}
	if b.Dir, err = filepath.Abs(b.Dir); err != nil {
		return fmt.Errorf("directory of the store: %w", err)
	}
	b.durability, err = parseDurability(b.Durability)
	return err
}

func parseDurability(s string) (badgerstore.Durability, error) {
	switch s {
	case "", "process":
		return badgerstore.Process, nil
	case "power":
		return badgerstore.Power, nil
	}
	return badgerstore.Process, fmt.Errorf("durability: want process or power, got %q", s)
}

// PoolKey implements [StoreModule]: the store is its directory.
func (b *BadgerStore) PoolKey() string { return "badger " + b.Dir }

// Open implements [StoreModule].
func (b *BadgerStore) Open(log *slog.Logger) (core.Store, error) {
	return badgerstore.Open(b.Dir, badgerstore.Options{Durability: b.durability, Logger: log})
}

// Tune implements [StoreModule].
func (b *BadgerStore) Tune(s core.Store) {
	s.(*badgerstore.Store).SetDurability(b.durability)
}

// Interface guards.
var (
	_ caddy.Provisioner = (*BadgerStore)(nil)
	_ StoreModule       = (*BadgerStore)(nil)
)
