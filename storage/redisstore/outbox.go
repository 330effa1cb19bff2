package redisstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/limitkeeper/limitkeeper/core"
)

// task is an entry of the outbox of an account: a change in the slots of users that follows from a
// transaction.
//
// A transaction writes its tasks together with its changes. Update runs them before it returns. If that
// fails, the next transaction of the account runs them, or a call that needs the location of a counter.
//
// Tasks are idempotent: processes may run one in parallel, late, or twice. One exception: a late deletion
// also deletes a counter that an import has created again with the same number.
type task struct {
	kind     string
	seq      int64 // of the key
	from, to int64 // user IDs
	move     uint8 // counts the moves of the key, modulo 256
}

const (
	keepDeletedDays    = "user"  // delete the counter of a user, keep its days with the deleted users, and continue with deleteUserCounters
	deleteUserCounters = "gone"  // delete the counters of a user and of its keys
	deleteKeyCounter   = "key"   // delete the counter of a key
	moveKeyCounter     = "move"  // move the counter of a key to another user
	removeTombstone    = "again" // delete the tombstone of a user or key
)

// String returns the stored form.
func (k task) String() string {
	return fmt.Sprintf("%s %d %d %d %d", k.kind, k.seq, k.from, k.to, k.move)
}

func parseTask(s string) (k task, err error) {
	if _, err = fmt.Sscanf(s, "%s %d %d %d %d", &k.kind, &k.seq, &k.from, &k.to, &k.move); err != nil {
		return k, fmt.Errorf("redis: unreadable task %q in the outbox: %w", s, err)
	}
	return k, nil
}

// drain runs the tasks in the outbox of an account. After wait it returns [core.ErrUnavailable], and the
// tasks continue until the store is closed.
func (s *Store) drain(ctx context.Context, account string, wait time.Duration) error {
	if err := s.begin(); err != nil {
		return err
	}
	done := make(chan error, 1)
	s.background.Go(func() {
		_, err, _ := s.drains.Do(account, func() (any, error) {
			return nil, s.runTasks(context.WithoutCancel(ctx), account)
		})
		done <- err
	})
	s.end()
	t := time.NewTimer(wait)
	defer t.Stop()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return unavailable(ctx.Err())
	case <-t.C:
		return core.Unavailable(errors.New("redis: the tasks of an earlier transaction take too long"))
	}
}

// runTasks runs tasks until the outbox is empty. Successive deletions of counters of keys run in parallel.
func (s *Store) runTasks(ctx context.Context, account string) error {
	for {
		tasks, err := s.pendingTasks(ctx, account)
		if err != nil || len(tasks) == 0 {
			return err
		}
		for len(tasks) > 0 {
			n := 0
			for n < len(tasks) && strings.HasPrefix(tasks[n], deleteKeyCounter+" ") {
				n++
			}
			n = max(1, n)
			if err := parallel(n, func(i int) error { return s.runTask(ctx, account, tasks[i]) }); err != nil {
				return err
			}
			tasks = tasks[n:]
		}
	}
}

// readDrained runs a batch of reads at a moment when the outbox is empty. It waits for the tasks of the outbox, and returns the
// version of the account.
func (r *reader) readDrained(wait time.Duration, fill func(*batch)) (version string, answers []rueidis.RedisMessage, err error) {
	for begun := time.Now(); ; {
		b := newBatchOf(r.version)
		b.add("LLEN", r.slot.key("outbox"))
		fill(b)
		if version, answers, err = r.s.readBatch(r.ctx, b); err != nil {
			return "", nil, err
		}
		if number(answers[0]) == 0 {
			return version, answers[1:], nil
		}
		if err := r.s.drain(r.ctx, r.in.Account, wait); err != nil {
			return "", nil, err
		}
		if time.Since(begun) > max(wait, maxRetryTime) {
			return "", nil, core.Unavailable(errors.New("redis: concurrent transactions keep adding tasks to the account"))
		}
	}
}

// pendingTasks returns the oldest maxArgs tasks in the outbox of an account.
func (s *Store) pendingTasks(ctx context.Context, account string) ([]string, error) {
	all, err := s.do(ctx, s.client.B().Lrange().Key(s.o.account(account).key("outbox")).Start(0).Stop(maxArgs-1).Build()).AsStrSlice()
	return all, unavailable(err)
}

// runTask runs a task and removes it from the outbox.
func (s *Store) runTask(ctx context.Context, account, text string) error {
	k, err := parseTask(text)
	if err != nil {
		return err
	}
	switch k.kind {
	case keepDeletedDays:
		return s.keepDeleted(ctx, account, k)
	case deleteUserCounters:
		err = s.deleteCountersOf(ctx, account, k.from)
	case deleteKeyCounter:
		err = s.deleteCounter(ctx, s.o.usage(account, k.from), fieldOf(k.seq))
	case removeTombstone: // of the user if seq is 0
		field := userField
		if k.seq != 0 {
			field = fieldOf(k.seq)
		}
		err = unavailable(s.do(ctx, s.client.B().Del().Key(s.o.usage(account, k.from).tombstone(field)).Build()).Error())
	case moveKeyCounter:
		err = s.moveCounter(ctx, account, k)
	default:
		err = fmt.Errorf("redis: unknown task %q in the outbox", text)
	}
	if err != nil {
		return err
	}
	return unavailable(s.do(ctx, s.client.B().Lrem().Key(s.o.account(account).key("outbox")).Count(1).Element(text).Build()).Error())
}

// tombstoneTTL is how long a tombstone lives, in milliseconds: longer than any call that has read the
// resource before its deletion.
const tombstoneTTL = "60000"

// deleteCounter deletes the counter, histories and other data of a key or user, and leaves a tombstone.
func (s *Store) deleteCounter(ctx context.Context, n keySlot, field string) error {
	keys := append([]string{n.counters(), n.tombstone(field)}, n.dataKeys(field)...)
	args := append([]string{tombstoneTTL, field}, counterFields(field)...)
	return unavailable(deleteCounterScript.run(ctx, s.writes, keys, args).Error())
}

// deleteCountersOf deletes the counters of a user and of its keys. The user's own counter goes first:
// without it, the keys cannot count.
func (s *Store) deleteCountersOf(ctx context.Context, account string, user int64) error {
	n := s.o.usage(account, user)
	if err := s.deleteCounter(ctx, n, userField); err != nil {
		return err
	}
	for {
		fields, err := s.counterFieldsOf(ctx, n)
		if err != nil || len(fields) == 0 {
			return err
		}
		if err := parallel(len(fields), func(i int) error { return s.deleteCounter(ctx, n, fields[i]) }); err != nil {
			return err
		}
	}
}

// counterFieldsOf returns some of the counter fields of a user; none at the end.
func (s *Store) counterFieldsOf(ctx context.Context, n keySlot) ([]string, error) {
	var all []string
	for cursor := uint64(0); ; {
		e, err := s.do(ctx, s.client.B().Hscan().Key(n.counters()).Cursor(cursor).Count(maxArgs).Build()).AsScanEntry()
		if err != nil {
			return nil, unavailable(err)
		}
		for pair := range slices.Chunk(e.Elements, 2) {
			if isCounter(pair[0]) {
				all = append(all, pair[0])
			}
		}
		if cursor = e.Cursor; cursor == 0 || len(all) > 0 {
			return all, nil
		}
	}
}

// moveCounter moves the counter and data of a key to another user: freeze the source, copy, delete the
// source. The key never counts in two places.
func (s *Store) moveCounter(ctx context.Context, account string, k task) error {
	moved, err := s.atSource(ctx, moveBeginScript, account, k)
	if err != nil {
		return err
	}
	if err := s.copyMoved(ctx, account, k, moved); err != nil {
		return err
	}
	_, err = s.atSource(ctx, moveEndScript, account, k)
	return err
}

// atSource runs the first or the last step of a move in the slot of the old user.
func (s *Store) atSource(ctx context.Context, c *script, account string, k task) ([]rueidis.RedisMessage, error) {
	from, field := s.o.usage(account, k.from), fieldOf(k.seq)
	keys := append([]string{from.counters(), from.tombstone(field)}, from.dataKeys(field)...)
	return s.runLong(ctx, c, keys, field, strconv.Itoa(int(k.move)), tombstoneTTL)
}

// copyMoved creates the counter in the target slot.
func (s *Store) copyMoved(ctx context.Context, account string, k task, moved []rueidis.RedisMessage) error {
	to, field := s.o.usage(account, k.to), fieldOf(k.seq)
	args := []string{field, strconv.Itoa(int(k.move))}
	for _, m := range moved {
		args = append(args, textOf(m))
	}
	if len(moved) == 0 { // the key was never used, or the move has ended
		args = append(args, encodeCounter(&core.Counter{}, k.move), "", "", "", "", "", "", "")
	}
	keys := append([]string{to.counters(), to.tombstone(userField), to.tombstone(field)}, to.dataKeys(field)...)
	_, err := s.runLong(ctx, moveCopyScript, keys, args...)
	return err
}

// runLong runs a script that writes. Its timeout is ten times longer, as a long history takes time.
func (s *Store) runLong(ctx context.Context, c *script, keys []string, args ...string) ([]rueidis.RedisMessage, error) {
	r := c.run(ctx, s.forLonger(9*s.o.Timeout), keys, args)
	if err := unavailable(r.Error()); err != nil {
		return nil, err
	}
	all, err := r.ToArray()
	if err != nil {
		return nil, nil // the answer is an integer
	}
	return all, nil
}

// textOf returns an answer as a string, integers included.
func textOf(m rueidis.RedisMessage) string {
	if m.IsInt64() {
		return strconv.FormatInt(max(0, number(m)), 10) // a TTL; -1 (none) becomes 0, as RESTORE expects
	}
	s, _ := text(m)
	return s
}
