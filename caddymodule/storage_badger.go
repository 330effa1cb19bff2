package caddymodule

import (
	"fmt"
	"log/slog"
	"path/filepath"

	"github.com/caddyserver/caddy/v2"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/badgerstore"
)

func init() { caddy.RegisterModule(new(BadgerStore)) }

// BadgerStore keeps all data in an embedded database in a directory of its own. It needs no other
// server. Only one process at a time can open the directory.
type BadgerStore struct {
	// The directory. It is created if it does not exist. Placeholders are replaced.
	// Default: `limitkeeper` in Caddy's data directory.
	Dir string `json:"dir,omitempty"`

	// What an answered request survives. It always survives a crash of the process.
	//
	// - `process`: a power cut may lose the last second
	// - `power`: a power cut loses nothing; each commit waits for the disk
	//
	// Default: `process`. A reload can change it.
	Durability string `json:"durability,omitempty"`

	// Disk space in bytes to reserve, in a file, for writes that must succeed on a full disk. At least
	// 33554432 (32 MiB). Default: 268435456 (256 MiB), or an eighth of a disk below 2 GiB. A reload
	// can change it.
	MinFree int64 `json:"min_free,omitempty"`

	// The maximum size in bytes of the event log, which is the history of requests. The oldest
	// segments are deleted first, once they are checkpointed. Segments with request ids in use stay
	// for two days. At least 67108864 (64 MiB). Default: half of the disk. A reload can change it.
	MaxHistory int64 `json:"max_history,omitempty"`

	durability badgerstore.Durability
}

// minMaxHistory is the smallest max_history in bytes: one segment of the event log. A smaller
// value is probably a size without its unit.
const minMaxHistory = 64 << 20

// CaddyModule implements [caddy.Module].
func (*BadgerStore) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "limitkeeper.store.badger", New: func() caddy.Module { return new(BadgerStore) }}
}

// Provision implements [caddy.Provisioner]. It does not open the store.
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
	if b.MaxHistory != 0 && b.MaxHistory < minMaxHistory {
		return fmt.Errorf("max_history: want at least %d bytes, got %d", minMaxHistory, b.MaxHistory)
	}
	if b.MinFree != 0 && b.MinFree < badgerstore.MinMinFree {
		return fmt.Errorf("min_free: want at least %d bytes, got %d", badgerstore.MinMinFree, b.MinFree)
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

// PoolKey implements [StoreModule]. The directory identifies the store.
func (b *BadgerStore) PoolKey() string { return "badger " + b.Dir }

// Open implements [StoreModule].
func (b *BadgerStore) Open(log *slog.Logger, t core.Tunables, c *core.Clock) (core.Store, error) {
	s, err := badgerstore.Open(b.Dir, badgerstore.Options{
		Durability: b.durability, Logger: log, CounterCache: counterCache(t), MinFree: b.MinFree, MaxHistory: b.MaxHistory, Clock: c})
	if err != nil {
		return nil, err
	}
	log.Info("counting on disk", "directory", b.Dir, "durability", b.durability.String())
	return s, nil
}

// counterCache returns the size of the counter cache: one counter for each cached key and each
// cached user.
func counterCache(t core.Tunables) int { return 2 * t.KeyCache }

// Tune implements [StoreModule].
func (b *BadgerStore) Tune(s core.Store, t core.Tunables) {
	store := s.(*badgerstore.Store)
	store.SetDurability(b.durability)
	store.SetCounterCache(counterCache(t))
	store.SetMinFree(b.MinFree)
	store.SetMaxHistory(b.MaxHistory)
}

// The metrics of the embedded store.
var (
	eventLogBytes = prometheus.NewDesc("limitkeeper_eventlog_bytes",
		"The size of the event log, which is the history.", nil, nil)
	eventLogPending = prometheus.NewDesc("limitkeeper_eventlog_pending_bytes",
		"Bytes of the event log since the last checkpoint. At 2 GiB, decisions wait.", nil, nil)
	eventLogCheckpoints = prometheus.NewDesc("limitkeeper_eventlog_checkpoints_total",
		"Number of checkpoints.", nil, nil)
	eventLogWaits = prometheus.NewDesc("limitkeeper_eventlog_waits_total",
		"Number of decisions that waited for a checkpoint.", nil, nil)
	storeVerified = prometheus.NewDesc("limitkeeper_store_verified_timestamp_seconds",
		"Time of the last scrub of all store files without damage, in Unix seconds; 0 before the first.", nil, nil)
)

func describeBadger(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{eventLogBytes, eventLogPending, eventLogCheckpoints, eventLogWaits, storeVerified} {
		ch <- d
	}
}

// collectBadger collects the metrics of an embedded store. It does nothing for other stores.
func collectBadger(s core.Store, ch chan<- prometheus.Metric) {
	b, ok := s.(*badgerstore.Store)
	if !ok {
		return
	}
	st := b.Stats()
	ch <- prometheus.MustNewConstMetric(eventLogBytes, prometheus.GaugeValue, float64(st.EventLogBytes))
	ch <- prometheus.MustNewConstMetric(eventLogPending, prometheus.GaugeValue, float64(st.PendingBytes))
	ch <- prometheus.MustNewConstMetric(eventLogCheckpoints, prometheus.CounterValue, float64(st.Checkpoints))
	ch <- prometheus.MustNewConstMetric(eventLogWaits, prometheus.CounterValue, float64(st.Waits))
	ch <- prometheus.MustNewConstMetric(storeVerified, prometheus.GaugeValue, float64(st.VerifiedAt))
}

// Interface guards.
var (
	_ caddy.Provisioner = (*BadgerStore)(nil)
	_ StoreModule       = (*BadgerStore)(nil)
)
