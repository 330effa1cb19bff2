package caddymodule

import (
	"fmt"
	"log/slog"
	"path/filepath"
	"time"

	"github.com/caddyserver/caddy/v2"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/service"
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

	// The free disk space in bytes below which requests are refused. At least
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
func (b *BadgerStore) Open(log *slog.Logger, t service.Tunables, c *core.Clock) (core.Store, error) {
	s, err := badgerstore.Open(b.Dir, badgerstore.Options{
		Durability: b.durability, Logger: log, CounterCache: counterCache(t), MinFree: b.MinFree, MaxHistory: b.MaxHistory, Clock: c,
		OnWrite: observeWrite, OnSync: observeSync, OnCheckpoint: observeCheckpoint})
	if err != nil {
		return nil, err
	}
	log.Info("counting on disk", "directory", b.Dir, "durability", b.durability.String())
	return s, nil
}

// counterCache returns the size of the counter cache: one counter for each cached key and each
// cached user.
func counterCache(t service.Tunables) int { return 2 * t.KeyCache }

// Tune implements [StoreModule].
func (b *BadgerStore) Tune(s core.Store, t service.Tunables) {
	store := s.(*badgerstore.Store)
	store.SetDurability(b.durability)
	store.SetCounterCache(counterCache(t))
	store.SetMinFree(b.MinFree)
	store.SetMaxHistory(b.MaxHistory)
}

// The metrics of the event log and its checkpoints that are measured as they happen. All stores of the process share
// them, so a reload does not reset them.
var (
	batchEvents = newHistogram("eventlog_batch_events", "Events that one group commit wrote to the event log.",
		1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
	writeTime = newHistogram("eventlog_write_seconds", "How long a group commit took to write to the event log, without the sync.",
		.000005, .00001, .000025, .0001, .00025, .001, .0025, .01, .025, .1, .25, 1, 2.5)
	syncTime = newHistogram("eventlog_sync_seconds", "How long a sync of the event log took: one for each group commit with durability power, else one a second.",
		.0001, .00025, .001, .0025, .01, .025, .1, .25, 1, 2.5, 10)
	checkpointTime = newHistogram("checkpoint_seconds", "How long a checkpoint took, also one that failed.",
		.001, .01, .1, .25, 1, 2.5, 10, 30, 60)
	checkpointFailures = newCounter("checkpoint_failures_total", "Checkpoints that failed. The store tries again after a second.")
)

// observeWrite observes a group commit.
func observeWrite(events int, took time.Duration) {
	batchEvents.Observe(float64(events))
	writeTime.Observe(took.Seconds())
}

// observeSync observes a sync of the event log.
func observeSync(took time.Duration) { syncTime.Observe(took.Seconds()) }

// observeCheckpoint observes a checkpoint.
func observeCheckpoint(took time.Duration, err error) {
	checkpointTime.Observe(took.Seconds())
	if err != nil {
		checkpointFailures.Inc()
	}
}

// collect implements [meteredStore].
func (*BadgerStore) collect(s core.Store, ch scrape) {
	ch.measured(batchEvents, writeTime, syncTime, checkpointTime, checkpointFailures)
	store := s.(*badgerstore.Store)
	st := store.Stats()
	ch.gauge("eventlog_bytes", "The size of the event log, which is the history.", float64(st.EventLogBytes))
	ch.gauge("eventlog_max_bytes", "The largest size of the event log: max_history.", float64(st.MaxHistory))
	ch.gauge("eventlog_segments", "Files of the event log.", float64(st.Segments))
	ch.gauge("eventlog_pending_bytes", "Bytes of the event log since the last checkpoint. At 2 GiB, decisions wait.", float64(st.PendingBytes))
	ch.counter("eventlog_checkpoints_total", "Number of checkpoints.", float64(st.Checkpoints))
	ch.counter("eventlog_waits_total", "Number of decisions that waited for a checkpoint.", float64(st.Waits))
	ch.gauge("checkpoint_success_timestamp_seconds",
		"When the last checkpoint ended without an error, in Unix seconds; at first the start of the store.", float64(st.CheckpointedAt.UnixMilli())/1000)
	ch.gauge("store_verified_timestamp_seconds",
		"Time of the last scrub of all store files without damage, in Unix seconds; 0 before the first.", float64(st.VerifiedAt))
	ch.gauge("counter_cache_entries", "Counters in memory.", float64(st.Counters))
	ch.counter("counter_cache_hits_total", "Look-ups of counters for decisions that found the counter in memory.", float64(st.CounterHits))
	ch.counter("counter_cache_misses_total", "Counters that were read from the database.", float64(st.CounterMisses))
	ch.counter("counter_cache_evictions_total", "Counters that were removed from memory to make room.", float64(st.CounterEvictions))
	ch.gauge("disk_min_free_bytes", "The free disk space below which the store refuses requests: min_free.", float64(st.MinFree))
	if free, size, ok := store.DiskSpace(); ok { // on systems that report it
		ch.gauge("disk_free_bytes", "Free bytes of the disk of the store.", float64(free))
		ch.gauge("disk_size_bytes", "The size of the disk of the store.", float64(size))
	}
}

// Interface guards.
var (
	_ caddy.Provisioner = (*BadgerStore)(nil)
	_ StoreModule       = (*BadgerStore)(nil)
	_ meteredStore      = (*BadgerStore)(nil)
)
