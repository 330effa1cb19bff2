package redisstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/redis/rueidis"
	"golang.org/x/sync/errgroup"

	"github.com/limitkeeper/limitkeeper/core"
)

// A transaction changes the slot of the account. What follows from it in the slots of
// users is written down there in the same step, and is done afterwards: by who made the
// transaction, before it is answered; if that fails, by whoever next writes to the
// account, or meets a counter that is not where it should be. Doing a chore again, late
// or beside others who do it changes nothing, unless what it deletes was put again under the
// same number meanwhile, as an import may.
type task struct {
	kind       string
	seq        int64 // of the key
	from, to   int64 // users
	moveNumber uint8 // the number of the move
}

const (
	deleteUserCounters = "user"  // delete the counters of a user and of all its keys
	deleteUserKeys     = "all"   // delete the keys of a user, then those
	deleteKeyCounter   = "key"   // delete the counter of a key
	moveKeyCounter     = "move"  // take the counter of a key to another user
	removeTombstone    = "again" // forget that a user, or a key, of that number was deleted
)

// String returns the chore as it is written down.
func (c task) String() string {
	return fmt.Sprintf("%s %d %d %d %d", c.kind, c.seq, c.from, c.to, c.moveNumber)
}

func parseTask(s string) (c task, err error) {
	if _, err = fmt.Sscanf(s, "%s %d %d %d %d", &c.kind, &c.seq, &c.from, &c.to, &c.moveNumber); err != nil {
		return c, fmt.Errorf("redis: the chore %q cannot be read: %w", s, err)
	}
	return c, nil
}

// settle does what transactions on an account have left to do. Who waits for it waits
// for a while, then it is [core.ErrUnavailable]: it goes on all the same, until the store is
// closed.
func (s *Store) drain(ctx context.Context, account string, wait time.Duration) error {
	done := s.drains.DoChan(account, func() (any, error) {
		return nil, s.runTasks(context.WithoutCancel(ctx), account)
	})
	t := time.NewTimer(wait)
	defer t.Stop()
	select {
	case r := <-done:
		return r.Err
	case <-ctx.Done():
		return unavailable(ctx.Err())
	case <-t.C:
		return core.Unavailable(errors.New("redis: what a transaction on the account has left to do takes long"))
	}
}

// doChores does chores of an account until none is left.
func (s *Store) runTasks(ctx context.Context, account string) error {
	for {
		left, err := s.pendingTasks(ctx, account)
		if err != nil || len(left) == 0 {
			return err
		}
		for _, what := range left {
			if s.closing.Load() {
				return errClosed
			}
			if err := s.runTask(ctx, account, what); err != nil {
				return err
			}
		}
	}
}

// lookSettled looks at an account that has no chores left.
func (s *Store) readDrained(ctx context.Context, account string, fill func(*batch)) ([]rueidis.RedisMessage, error) {
	for begun := time.Now(); ; {
		b := newBatch(s.o.account(account))
		b.add("LLEN", s.o.account(account).key("chores"))
		fill(b)
		_, answers, err := s.readBatch(ctx, b)
		if err != nil || number(answers[0]) == 0 {
			return answers[min(1, len(answers)):], err
		}
		if err := s.drain(ctx, account, s.o.Timeout); err != nil {
			return nil, err
		}
		if time.Since(begun) > maxRetryTime {
			return nil, pendingError(errPending)
		}
	}
}

// left returns chores of an account that are not done.
func (s *Store) pendingTasks(ctx context.Context, account string) ([]string, error) {
	ctx, cancel := s.withTimeout(ctx)
	defer cancel()
	all, err := s.do(ctx, s.client.B().Lrange().Key(s.o.account(account).key("chores")).Start(0).Stop(maxArgs-1).Build()).AsStrSlice()
	return all, unavailable(err)
}

// doChore does a chore and strikes it off.
func (s *Store) runTask(ctx context.Context, account, what string) error {
	c, err := parseTask(what)
	if err != nil {
		return err
	}
	switch c.kind {
	case deleteUserCounters:
		err = s.deleteCountersOf(ctx, account, c.from)
	case deleteUserKeys:
		if err = s.deleteKeysOf(ctx, account, c.from); err == nil {
			err = s.deleteCountersOf(ctx, account, c.from)
		} else if errors.Is(err, errReused) { // others have done it all
			err = nil
		}
	case deleteKeyCounter:
		err = s.deleteCounter(ctx, s.o.usage(account, c.from), fieldOf(c.seq))
	case removeTombstone:
		err = s.removeTombstone(ctx, s.o.usage(account, c.from), c.seq)
	case moveKeyCounter:
		err = s.moveCounter(ctx, account, c)
	default:
		err = fmt.Errorf("redis: nobody knows how to do the chore %q", what)
	}
	if err != nil {
		return err
	}
	ctx, cancel := s.withTimeout(ctx)
	defer cancel()
	return unavailable(s.do(ctx, s.client.B().Lrem().Key(s.o.account(account).key("chores")).Count(1).Element(what).Build()).Error())
}

// markFor is for how long it can be seen that something was deleted, in milliseconds:
// longer than anyone takes who has read that it was there.
const tombstoneTTL = "60000"

// forgetMark lets a number be used that was used before.
func (s *Store) removeTombstone(ctx context.Context, n keySlot, seq int64) error {
	mark := n.tombstone(userField)
	if seq != 0 {
		mark = n.tombstone(fieldOf(seq))
	}
	ctx, cancel := s.withTimeout(ctx)
	defer cancel()
	return unavailable(s.do(ctx, s.client.B().Del().Key(mark).Build()).Error())
}

// retire deletes the counter of a key, or that of a user, with all that goes with it.
func (s *Store) deleteCounter(ctx context.Context, n keySlot, field string) error {
	keys := append([]string{n.counters(), n.tombstone(field)}, n.dataKeys(field)...)
	args := append([]string{tombstoneTTL}, counterFields(field)...)
	ctx, cancel := s.withTimeout(ctx)
	defer cancel()
	return unavailable(deleteCounterScript.write(ctx, s, keys, args).Error())
}

// dropKeys deletes the keys of a deleted user, some at a time: so many that nobody else waits
// long.
func (s *Store) deleteKeysOf(ctx context.Context, account string, user int64) error {
	for left := true; left; {
		if s.closing.Load() {
			return errClosed
		}
		err := s.retryStale(func() (done bool, err error) {
			t := s.newTx(ctx, account)
			t.isTask = true
			done, _, err = t.run(func(core.Tx) error {
				left, err = t.deleteSomeKeys(user)
				return err
			})
			return done, err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// dropUser deletes the counters of a user and of its keys: its own first, without which
// nothing counts.
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
		if s.closing.Load() {
			return errClosed
		}
		var g errgroup.Group
		g.SetLimit(maxParallel)
		for _, field := range fields {
			g.Go(func() error { return s.deleteCounter(ctx, n, field) })
		}
		if err := g.Wait(); err != nil {
			return err
		}
	}
}

// fields returns some of the counters that a user has.
func (s *Store) counterFieldsOf(ctx context.Context, n keySlot) ([]string, error) {
	ctx, cancel := s.withTimeout(ctx)
	defer cancel()
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

// move takes the counter of a key with all that goes with it to another user. At
// no time do two count: it leaves, arrives, and is deleted where it was.
func (s *Store) moveCounter(ctx context.Context, account string, c task) error {
	left, err := s.beginMove(ctx, account, c)
	if err != nil {
		return err
	}
	if err := s.copyMoved(ctx, account, c, left); err != nil {
		return err
	}
	return s.endMove(ctx, account, c)
}

// leave ends counting where a key is, and returns all that it has there.
func (s *Store) beginMove(ctx context.Context, account string, c task) ([]rueidis.RedisMessage, error) {
	return s.runLong(ctx, moveBeginScript, s.sourceKeys(account, c), fieldOf(c.seq), strconv.Itoa(int(c.moveNumber)), tombstoneTTL)
}

// arrive puts it where the key goes.
func (s *Store) copyMoved(ctx context.Context, account string, c task, left []rueidis.RedisMessage) error {
	to, field := s.o.usage(account, c.to), fieldOf(c.seq)
	args := []string{field, strconv.Itoa(int(c.moveNumber))}
	for _, m := range left {
		args = append(args, textOf(m))
	}
	if len(left) == 0 { // it was never used, or has left long ago
		args = append(args, encodeCounter(&core.Counter{}, c.moveNumber), "", "0", "")
	}
	keys := append([]string{to.counters(), to.tombstone(userField), to.tombstone(field)}, to.dataKeys(field)...)
	_, err := s.runLong(ctx, moveCopyScript, keys, args...)
	return err
}

// depart deletes it where the key was.
func (s *Store) endMove(ctx context.Context, account string, c task) error {
	_, err := s.runLong(ctx, moveEndScript, s.sourceKeys(account, c), fieldOf(c.seq), strconv.Itoa(int(c.moveNumber)), tombstoneTTL)
	return err
}

// leaving are the keys of what a key has where it was.
func (s *Store) sourceKeys(account string, c task) []string {
	from, field := s.o.usage(account, c.from), fieldOf(c.seq)
	return append([]string{from.counters(), from.tombstone(field)}, from.dataKeys(field)...)
}

// run runs a script that writes, for as long as it takes to hand over a long history.
func (s *Store) runLong(ctx context.Context, c *script, keys []string, args ...string) ([]rueidis.RedisMessage, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*s.o.Timeout)
	defer cancel()
	r := c.write(ctx, s, keys, args)
	if err := unavailable(r.Error()); err != nil {
		return nil, err
	}
	all, err := r.ToArray()
	if err != nil {
		return nil, nil // it answers with a number
	}
	return all, nil
}

// textOf returns an answer as a text: a number too.
func textOf(m rueidis.RedisMessage) string {
	if m.IsInt64() {
		return strconv.FormatInt(max(0, number(m)), 10) // a time to live: 0 for ever
	}
	s, _ := text(m)
	return s
}
