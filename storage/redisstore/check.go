package redisstore

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/rueidis"

	"github.com/limitkeeper/limitkeeper/core"
)

// minVersion is the oldest supported version of Redis. Valkey reports Redis 7.2.
var minVersion = [2]int{6, 2}

// check returns an error if the servers are not usable. It logs settings that risk the loss of counts.
func (s *Store) check(ctx context.Context) error {
	for address, n := range s.client.Nodes() {
		calls, cancel := context.WithTimeout(ctx, s.o.Timeout)
		info, err := n.Do(calls, n.B().Info().Build()).ToString()
		cancel()
		if err != nil {
			if _, isReply := rueidis.IsRedisErr(err); !isReply && s.client.Mode() == rueidis.ClientModeCluster {
				continue // the other nodes may be usable
			}
			return fmt.Errorf("INFO: %w", err)
		}
		if err := s.checkInfo(address, infoOf(info)); err != nil {
			return err
		}
	}
	if err := s.checkFormat(ctx); err != nil {
		return err
	}
	_, _, err := s.readBatch(ctx, newBatchOf(s.o.registry().key("version"))) // tests EVALSHA with an empty batch
	return err
}

// infoOf parses the answer of INFO.
func infoOf(text string) map[string]string {
	info := map[string]string{}
	for line := range strings.Lines(text) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			info[name] = value
		}
	}
	return info
}

func (s *Store) checkInfo(address string, info map[string]string) error {
	if v := info["redis_version"]; tooOld(v) {
		return fmt.Errorf("version %s is too old: Redis %d.%d or Valkey 7.2 is required", v, minVersion[0], minVersion[1])
	}
	if info["cluster_enabled"] == "1" && s.client.Mode() != rueidis.ClientModeCluster {
		return errors.New("the server is a Cluster node, but does not list its slots: " +
			"the user needs permission for CLUSTER SLOTS, and for CLUSTER SHARDS from version 8 on")
	}
	s.warn(address, info, time.Now())
	return nil
}

// warningLog remembers when each warning was last logged, by address and text.
type warningLog struct {
	mu sync.Mutex
	at map[string]time.Time
}

// warnEvery is the interval at which a lasting condition is logged again.
const warnEvery = time.Hour

// logWhile logs a warning when its condition becomes true, and every hour while it stays true. It returns
// holds.
func (w *warningLog) logWhile(holds bool, log *slog.Logger, address string, now time.Time, text string, about ...any) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	id := address + " " + text
	if !holds {
		delete(w.at, id)
	} else if last, logged := w.at[id]; !logged || now.Sub(last) >= warnEvery {
		w.at[id] = now
		log.With("address", address).Warn(text, about...)
	}
	return holds
}

// warn logs each setting of a server that risks the loss of counts. It returns the number of such
// settings.
func (s *Store) warn(address string, info map[string]string, now time.Time) (hold int) {
	policy, wait, master := info["maxmemory_policy"], s.wait.Load().Replicas, info["role"] == "master"
	replicas, err := strconv.Atoi(info["connected_slaves"])
	for _, w := range []struct {
		holds bool
		text  string
		about []any
	}{
		{policy != "noeviction", "redis may delete counters when its memory is full: set maxmemory-policy noeviction",
			[]any{"maxmemory_policy", policy}},
		{master && err == nil && replicas < wait, "redis has fewer replicas than wait_replicas: decisions will fail",
			[]any{"replicas", replicas, "wait_replicas", wait}},
		{master && replicas > 0 && wait == 0, "a failover of redis may lose the latest counts: set wait_replicas",
			[]any{"replicas", replicas}},
		{master && info["aof_enabled"] == "0", "redis has no append-only file: a restart loses the counts since the last snapshot", nil},
	} {
		if s.warnings.logWhile(w.holds, s.o.Logger, address, now, w.text, w.about...) {
			hold++
		}
	}
	return hold
}

func tooOld(version string) bool {
	var v [2]int
	n, _ := fmt.Sscanf(version, "%d.%d", &v[0], &v[1])
	return n > 0 && slices.Compare(v[:], minVersion[:]) < 0 // n is 0 for a text that is no version
}

// checkFormat returns an error if the stored data has another format. It writes the format only into an
// empty store, so that a store with full memory can be opened.
func (s *Store) checkFormat(ctx context.Context) error {
	have, err := s.storedFormat(ctx)
	if rueidis.IsRedisNil(err) {
		set := s.client.B().Set().Key(s.o.registry().key("format")).Value(format).Nx().Build()
		if err := s.do(ctx, set).Error(); err != nil && !rueidis.IsRedisNil(err) {
			return err
		}
		have, err = s.storedFormat(ctx) // another process may have written it first
	}
	if err == nil && have != format {
		err = s.formatError(have)
	}
	return err
}

// formatError is the error for data of another format.
func (s *Store) formatError(have string) error {
	return fmt.Errorf("the data under %s has the format %q, this version of Limitkeeper supports %q: "+
		"run the version that wrote the data, or choose another prefix or database", s.o.Prefix, have, format)
}

// noteFormat makes the store refuse every call while the data has another format: a node of a later version has upgraded the
// data, and this version may misread it.
func (s *Store) noteFormat(have string) {
	if have == format {
		s.otherFormat.Store(nil)
		return
	}
	err := core.Unavailable(core.Logged(s.formatError(have)))
	if s.otherFormat.Swap(&err) == nil {
		s.o.Logger.Error("another version of Limitkeeper has upgraded the data: this node refuses requests until it is upgraded too", "format", have, "supported", format)
	}
}

func (s *Store) storedFormat(ctx context.Context) (string, error) {
	return s.do(ctx, s.client.B().Get().Key(s.o.registry().key("format")).Build()).ToString()
}
