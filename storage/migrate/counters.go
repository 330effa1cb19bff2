package migrate

import (
	"context"
	"fmt"
	"slices"
	"strconv"

	"github.com/limitkeeper/limitkeeper/core"
)

func nameOfUser(id int64) string { return "user " + strconv.FormatInt(id, 10) }

// nameOf names the user or key of a counter in messages.
func nameOf(id core.CounterID) string {
	if id.KeyID != "" {
		return "key " + id.KeyID
	}
	return nameOfUser(id.UserID)
}

// eachCounters calls fn with pages of the ids of all counters of an account of the source, users before keys.
func (m *migration) eachCounters(ctx context.Context, account string, fn func([]core.CounterID) error) error {
	err := eachPage(ctx, m.o.page, usersOf(ctx, m.from, account), func(us []*core.User) error {
		ids := make([]core.CounterID, len(us))
		for i, u := range us {
			ids[i] = ofUser(account, u.ID)
		}
		return fn(ids)
	})
	if err != nil {
		return err
	}
	return eachPage(ctx, m.o.page, keysOf(ctx, m.from, account), func(ks []*core.Key) error {
		ids := make([]core.CounterID, len(ks))
		for i, k := range ks {
			ids[i] = ofKey(account, k.ID)
		}
		return fn(ids)
	})
}

// counters reads counters from both stores.
func (m *migration) counters(ctx context.Context, ids []core.CounterID) (from, to []core.Counter, err error) {
	if len(ids) == 0 {
		return nil, nil, nil
	}
	if from, err = m.from.Counters(ctx, ids); err != nil {
		return nil, nil, err
	}
	to, err = m.to.Counters(ctx, ids)
	return from, to, err
}

// copyCounters sets the counters of an account that differ, and then the days.
func (m *migration) copyCounters(ctx context.Context, account string) error {
	err := m.eachCounters(ctx, account, func(ids []core.CounterID) error {
		from, to, err := m.counters(ctx, ids)
		if err != nil {
			return err
		}
		var other []core.CounterID
		var want []core.Counter
		for i := range ids {
			if !from[i].Same(&to[i]) {
				other, want = append(other, ids[i]), append(want, from[i])
			}
		}
		if len(other) == 0 {
			return nil
		}
		if err := m.to.SetCounters(ctx, other, want); err != nil {
			return fmt.Errorf("the counters from that of %s on: %w", nameOf(other[0]), err)
		}
		return nil
	})
	if err != nil {
		return err
	}
	return m.parallelCounters(ctx, account, func(ctx context.Context, id core.CounterID) error {
		err := m.copyDays(ctx, id)
		m.progress.done(&m.progress.now.Counters, 1)
		return err
	})
}

// copyDays sets the days of a user or key if they differ.
func (m *migration) copyDays(ctx context.Context, id core.CounterID) error {
	from, to, err := m.days(ctx, id)
	if err != nil || slices.Equal(from, to) {
		return err
	}
	if err := m.to.SetDays(ctx, id, from); err != nil {
		return fmt.Errorf("the days of %s: %w", nameOf(id), err)
	}
	return nil
}

// days reads the days of a user or key from both stores.
func (m *migration) days(ctx context.Context, id core.CounterID) (from, to []core.CounterDay, err error) {
	if from, err = m.from.CounterDays(ctx, id); err != nil {
		return nil, nil, err
	}
	to, err = m.to.CounterDays(ctx, id)
	return from, to, err
}

// stillKept returns the days that are at most [core.DaysKept] days old. Each store drops older days at another time.
func (m *migration) stillKept(days []core.CounterDay) []core.CounterDay {
	first := core.DateOf(m.o.now()) - core.DaysKept + 1
	return slices.DeleteFunc(slices.Clone(days), func(d core.CounterDay) bool { return d.Date < first })
}
