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

	// How many bytes of the disk are set aside, in a file: room for writes that must not fail on a full
	// disk. At least 33554432 (32 MiB). Default: 268435456 (256 MiB), or an eighth of a disk that is
	// smaller than 2 GiB. It may be changed by a reload.
	MinFree int64 `json:"min_free,omitempty"`

	// How many bytes the event log may have on disk, and with it the history of requests.
	// The oldest history goes first, as soon as it is checkpointed; what a remembered request
	// id needs stays for two days. At least 67108864 (64 MiB). Default: half of the disk. It may
	// be changed by a reload.
	MaxHistory int64 `json:"max_history,omitempty"`

	durability badgerstore.Durability
}

// minMaxHistory is the smallest max_history: a segment of the event log, in bytes. Smaller
// values are most likely sizes without their unit.
const minMaxHistory = 64 << 20

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

// PoolKey implements [StoreModule]: the store is its directory.
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

// counterCache returns how many counters are kept in memory: those of the keys that
// are, and of as many users.
func counterCache(t core.Tunables) int { return 2 * t.KeyCache }

// Tune implements [StoreModule].
func (b *BadgerStore) Tune(s core.Store, t core.Tunables) {
	store := s.(*badgerstore.Store)
	store.SetDurability(b.durability)
	store.SetCounterCache(counterCache(t))
	store.SetMinFree(b.MinFree)
	store.SetMaxHistory(b.MaxHistory)
}

// The figures of a store on disk.
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
		"When the last scrub of all files of the store ended without damage; 0 before the first one.", nil, nil)
)

func describeBadger(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{eventLogBytes, eventLogPending, eventLogCheckpoints, eventLogWaits, storeVerified} {
		ch <- d
	}
}

// collectBadger shows the figures of a store, if it is one on disk.
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
