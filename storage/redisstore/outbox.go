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
type chore struct {
	kind     string
	seq      int64 // of the key
	from, to int64 // users
	move     uint8 // the number of the move
}

const (
	dropUser = "user"  // delete the counters of a user and of all its keys
	dropAll  = "all"   // delete the keys of a user, then those
	dropKey  = "key"   // delete the counter of a key
	moveKey  = "move"  // take the counter of a key to another user
	again    = "again" // forget that a user, or a key, of that number was deleted
)

// String returns the chore as it is written down.
func (c chore) String() string {
	return fmt.Sprintf("%s %d %d %d %d", c.kind, c.seq, c.from, c.to, c.move)
}

func parseChore(s string) (c chore, err error) {
	if _, err = fmt.Sscanf(s, "%s %d %d %d %d", &c.kind, &c.seq, &c.from, &c.to, &c.move); err != nil {
		return c, fmt.Errorf("redis: the chore %q cannot be read: %w", s, err)
	}
	return c, nil
}

// settle does what transactions on an account have left to do. Who waits for it waits
// for a while, then it is [core.ErrUnavailable]: it goes on all the same, until the store is
// closed.
func (s *Store) settle(ctx context.Context, account string, wait time.Duration) error {
	done := s.chores.DoChan(account, func() (any, error) {
		return nil, s.doChores(context.WithoutCancel(ctx), account)
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
func (s *Store) doChores(ctx context.Context, account string) error {
	for {
		left, err := s.left(ctx, account)
		if err != nil || len(left) == 0 {
			return err
		}
		for _, what := range left {
			if s.closing.Load() {
				return errClosed
			}
			if err := s.doChore(ctx, account, what); err != nil {
				return err
			}
		}
	}
}

// lookSettled looks at an account that has no chores left.
func (s *Store) lookSettled(ctx context.Context, account string, fill func(*batch)) ([]rueidis.RedisMessage, error) {
	for begun := time.Now(); ; {
		b := newBatch(s.o.account(account))
		b.add("LLEN", s.o.account(account).key("chores"))
		fill(b)
		_, answers, err := s.look(ctx, b)
		if err != nil || number(answers[0]) == 0 {
			return answers[min(1, len(answers)):], err
		}
		if err := s.settle(ctx, account, s.o.Timeout); err != nil {
			return nil, err
		}
		if time.Since(begun) > contention {
			return nil, unsettled(errUnsettled)
		}
	}
}

// left returns chores of an account that are not done.
func (s *Store) left(ctx context.Context, account string) ([]string, error) {
	ctx, cancel := s.within(ctx)
	defer cancel()
	all, err := s.do(ctx, s.client.B().Lrange().Key(s.o.account(account).key("chores")).Start(0).Stop(maxArgs-1).Build()).AsStrSlice()
	return all, unavailable(err)
}

// doChore does a chore and strikes it off.
func (s *Store) doChore(ctx context.Context, account, what string) error {
	c, err := parseChore(what)
	if err != nil {
		return err
	}
	switch c.kind {
	case dropUser:
		err = s.dropUser(ctx, account, c.from)
	case dropAll:
		if err = s.dropKeys(ctx, account, c.from); err == nil {
			err = s.dropUser(ctx, account, c.from)
		} else if errors.Is(err, errReused) { // others have done it all
			err = nil
		}
	case dropKey:
		err = s.retire(ctx, s.o.usage(account, c.from), fieldOf(c.seq))
	case again:
		err = s.forgetMark(ctx, s.o.usage(account, c.from), c.seq)
	case moveKey:
		err = s.move(ctx, account, c)
	default:
		err = fmt.Errorf("redis: nobody knows how to do the chore %q", what)
	}
	if err != nil {
		return err
	}
	ctx, cancel := s.within(ctx)
	defer cancel()
	return unavailable(s.do(ctx, s.client.B().Lrem().Key(s.o.account(account).key("chores")).Count(1).Element(what).Build()).Error())
}

// markFor is for how long it can be seen that something was deleted, in milliseconds:
// longer than anyone takes who has read that it was there.
const markFor = "60000"

// forgetMark lets a number be used that was used before.
func (s *Store) forgetMark(ctx context.Context, n names, seq int64) error {
	mark := n.mark(userField)
	if seq != 0 {
		mark = n.mark(fieldOf(seq))
	}
	ctx, cancel := s.within(ctx)
	defer cancel()
	return unavailable(s.do(ctx, s.client.B().Del().Key(mark).Build()).Error())
}

// retire deletes the counter of a key, or that of a user, with all that goes with it.
func (s *Store) retire(ctx context.Context, n names, field string) error {
	keys := append([]string{n.counters(), n.mark(field)}, n.having(field)...)
	args := append([]string{markFor}, fieldsOf(field)...)
	ctx, cancel := s.within(ctx)
	defer cancel()
	return unavailable(deleteCounterScript.write(ctx, s, keys, args).Error())
}

// dropKeys deletes the keys of a deleted user, some at a time: so many that nobody else waits
// long.
func (s *Store) dropKeys(ctx context.Context, account string, user int64) error {
	for left := true; left; {
		if s.closing.Load() {
			return errClosed
		}
		err := s.optimistic(func() (done bool, err error) {
			t := s.newTx(ctx, account)
			t.chore = true
			done, _, err = t.run(func(core.Tx) error {
				left, err = t.dropSome(user)
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
func (s *Store) dropUser(ctx context.Context, account string, user int64) error {
	n := s.o.usage(account, user)
	if err := s.retire(ctx, n, userField); err != nil {
		return err
	}
	for {
		fields, err := s.fields(ctx, n)
		if err != nil || len(fields) == 0 {
			return err
		}
		if s.closing.Load() {
			return errClosed
		}
		var g errgroup.Group
		g.SetLimit(together)
		for _, field := range fields {
			g.Go(func() error { return s.retire(ctx, n, field) })
		}
		if err := g.Wait(); err != nil {
			return err
		}
	}
}

// fields returns some of the counters that a user has.
func (s *Store) fields(ctx context.Context, n names) ([]string, error) {
	ctx, cancel := s.within(ctx)
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
func (s *Store) move(ctx context.Context, account string, c chore) error {
	left, err := s.leave(ctx, account, c)
	if err != nil {
		return err
	}
	if err := s.arrive(ctx, account, c, left); err != nil {
		return err
	}
	return s.depart(ctx, account, c)
}

// leave ends counting where a key is, and returns all that it has there.
func (s *Store) leave(ctx context.Context, account string, c chore) ([]rueidis.RedisMessage, error) {
	return s.run(ctx, moveBeginScript, s.leaving(account, c), fieldOf(c.seq), strconv.Itoa(int(c.move)), markFor)
}

// arrive puts it where the key goes.
func (s *Store) arrive(ctx context.Context, account string, c chore, left []rueidis.RedisMessage) error {
	to, field := s.o.usage(account, c.to), fieldOf(c.seq)
	args := []string{field, strconv.Itoa(int(c.move))}
	for _, m := range left {
		args = append(args, textOf(m))
	}
	if len(left) == 0 { // it was never used, or has left long ago
		args = append(args, encodeCounter(&core.Counter{}, c.move), "", "0", "")
	}
	keys := append([]string{to.counters(), to.mark(userField), to.mark(field)}, to.having(field)...)
	_, err := s.run(ctx, moveCopyScript, keys, args...)
	return err
}

// depart deletes it where the key was.
func (s *Store) depart(ctx context.Context, account string, c chore) error {
	_, err := s.run(ctx, moveEndScript, s.leaving(account, c), fieldOf(c.seq), strconv.Itoa(int(c.move)), markFor)
	return err
}

// leaving are the keys of what a key has where it was.
func (s *Store) leaving(account string, c chore) []string {
	from, field := s.o.usage(account, c.from), fieldOf(c.seq)
	return append([]string{from.counters(), from.mark(field)}, from.having(field)...)
}

// run runs a script that writes, for as long as it takes to hand over a long history.
func (s *Store) run(ctx context.Context, c *script, keys []string, args ...string) ([]rueidis.RedisMessage, error) {
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
