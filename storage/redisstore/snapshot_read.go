package redisstore

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/record"
)

// read runs a batch of reads in the slot of the account or of the registry. It fails if the snapshot or its before images are
// missing there.
func (v *Snapshot) read(ctx context.Context, n keySlot, fill func(*batch)) ([]rueidis.RedisMessage, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := v.s.begin(); err != nil {
		return nil, err
	}
	defer v.s.end()
	b := newBatch(n)
	b.add("GET", n.snapshots())
	b.add("HGET", n.before(v.account), "z")
	fill(b)
	_, answers, err := v.s.readBatch(ctx, b)
	if err != nil {
		return nil, err
	}
	open, _ := text(answers[0])
	id, _ := text(answers[1])
	if !strings.Contains("\n"+open, "\n"+v.account+" "+v.id+" ") || id != v.id {
		return nil, errSnapshotLost
	}
	return answers[2:], nil
}

// values reads n values in the slot of the account or of the registry as of the instant, "" for each that did not exist. add adds
// the command that reads present value i, and returns the name of its before image.
func (v *Snapshot) values(ctx context.Context, slot keySlot, n int, add func(b *batch, i int) (image string)) (values []string, err error) {
	answers, err := v.read(ctx, slot, func(b *batch) {
		for i := range n {
			image := add(b, i)
			b.add("HGET", slot.before(v.account), image)
		}
	})
	for pair := range slices.Chunk(answers, 2) {
		values = append(values, asOf(pair[0], pair[1]))
	}
	return values, err
}

// fields reads fields of a hash as of the instant, "" for each that did not exist.
func (v *Snapshot) fields(ctx context.Context, slot keySlot, hash string, fields ...string) ([]string, error) {
	return v.values(ctx, slot, len(fields), func(b *batch, i int) string {
		b.add("HGET", slot.key(hash), fields[i])
		return slot.key(hash) + "\n" + fields[i]
	})
}

// records reads records of the account as of the instant, "" for each that did not exist.
func (v *Snapshot) records(ctx context.Context, names []string) ([]string, error) {
	slot := v.s.o.account(v.account)
	return v.values(ctx, slot, len(names), func(b *batch, i int) string {
		b.add("GET", slot.key(names[i]))
		return slot.key(names[i])
	})
}

// asOf returns a value as of the instant, "" for none: its before image, or else the present value.
func asOf(present, image rueidis.RedisMessage) string {
	if b, saved := text(image); saved {
		return b
	}
	b, _ := text(present)
	return b
}

// Account implements [core.AccountReader].
func (v *Snapshot) Account(ctx context.Context, id string) (*core.Account, error) {
	values, err := v.fields(ctx, v.s.o.registry(), "accounts", id)
	switch {
	case err != nil:
		return nil, err
	case values[0] == "":
		return nil, core.ErrAccountNotFound
	}
	return record.Decode[core.Account]([]byte(values[0]))
}

// Access implements [core.AccountReader].
func (v *Snapshot) Access(ctx context.Context, account string) (*core.Access, error) {
	values, err := v.fields(ctx, v.s.o.registry(), "access", account)
	switch {
	case err != nil:
		return nil, err
	case values[0] == "":
		return &core.Access{}, nil
	}
	return record.Decode[core.Access]([]byte(values[0]))
}

// OwnerKeys implements [core.AccountReader]. The list of digests only grows, so the keys of the instant come first.
func (v *Snapshot) OwnerKeys(ctx context.Context, account string, p core.Page) (page []*core.OwnerKey, total int, err error) {
	n := v.s.o.registry()
	answers, err := v.read(ctx, n, func(b *batch) {
		b.add("LRANGE", n.key("owners:"+account), strconv.Itoa(p.Offset()), strconv.Itoa(p.Offset()+p.Size-1))
	})
	if err != nil {
		return nil, 0, err
	}
	digests, err := answers[0].AsStrSlice()
	if err != nil || len(digests) == 0 {
		return nil, 0, unavailable(err)
	}
	values, err := v.fields(ctx, n, "owners", digests...)
	for _, b := range values {
		if b == "" {
			continue
		}
		k, err := record.Decode[core.OwnerKey]([]byte(b))
		if err != nil {
			return nil, 0, err
		}
		page = append(page, k)
	}
	return page, 0, err
}

// LastNumbers implements [core.AccountReader].
func (v *Snapshot) LastNumbers(ctx context.Context, account string) (last core.Numbers, err error) {
	numbers, err := v.fields(ctx, v.s.o.account(account), "last", "user", "plan", "key")
	if err != nil {
		return last, err
	}
	for i, number := range []*int64{&last.User, &last.Plan, &last.Key} {
		if numbers[i] != "" {
			if *number, err = strconv.ParseInt(numbers[i], 10, 64); err != nil {
				return last, record.ErrDamaged
			}
		}
	}
	return last, nil
}

// Users implements [core.AccountReader].
func (v *Snapshot) Users(ctx context.Context, _ string, f core.UserFilter, p core.Page) ([]*core.User, int, error) {
	if f != (core.UserFilter{}) {
		return nil, 0, errFiltered
	}
	page, err := pageAsOf(ctx, v, "users", "u:", p, func(u *core.User) int64 { return u.ID })
	return page, 0, err
}

// Plans implements [core.AccountReader].
func (v *Snapshot) Plans(ctx context.Context, _ string, p core.Page) ([]*core.Plan, int, error) {
	page, err := pageAsOf(ctx, v, "plans", "p:", p, func(p *core.Plan) int64 { return p.Seq })
	return page, 0, err
}

// Keys implements [core.AccountReader].
func (v *Snapshot) Keys(ctx context.Context, _ string, f core.KeyFilter, p core.Page) ([]*core.Key, int, error) {
	if f != (core.KeyFilter{}) {
		return nil, 0, errFiltered
	}
	records, err := pageAsOf(ctx, v, "keys", "k:", p, func(k *keyRecord) int64 { return k.Seq })
	page := make([]*core.Key, len(records))
	for i, k := range records {
		page[i] = k.key()
	}
	return page, 0, err
}

var (
	errFiltered = errors.New("a snapshot has no filters")
	errPage     = errors.New("a snapshot is read one page after the other")
)

// nextPage is the number of the next page of an index, and the score behind which it begins.
type nextPage struct {
	number int
	after  string
}

// pageAsOf returns a page of the resources of the instant. number returns the score of a resource.
func pageAsOf[T any](ctx context.Context, v *Snapshot, index, records string, p core.Page, number func(*T) int64) (page []*T, err error) {
	next := v.pages[index]
	switch {
	case p.Number == 1:
		next.after = "(-inf"
	case p.Number != next.number:
		return nil, errPage
	}
	for more := true; more && len(page) < p.Size; {
		var entries []rueidis.ZScore
		if entries, more, err = v.entries(ctx, index, next.after, min(p.Size-len(page), scanBatch)); err != nil || len(entries) == 0 {
			return page, err
		}
		next.after = "(" + strconv.FormatFloat(entries[len(entries)-1].Score, 'f', -1, 64)
		ids := make([]string, len(entries))
		for i, e := range entries {
			ids[i] = records + e.Member
		}
		values, err := v.records(ctx, ids)
		if err != nil {
			return nil, err
		}
		for i, b := range values {
			if b == "" { // created after the instant
				continue
			}
			item, err := record.Decode[T]([]byte(b))
			if err != nil {
				return nil, err
			}
			if number(item) == int64(entries[i].Score) { // otherwise this entry is newer than the instant
				page = append(page, item)
			}
		}
	}
	next.number = p.Number + 1
	v.pages[index] = next
	return page, nil
}

// entries returns at most n entries of an index and of the entries that were removed from it since the instant, by score.
func (v *Snapshot) entries(ctx context.Context, index, after string, n int) (entries []rueidis.ZScore, more bool, err error) {
	slot := v.s.o.account(v.account)
	removed := slot.removed(v.account, index)
	answers, err := v.read(ctx, slot, func(b *batch) {
		b.add("ZSCORE", removed, "")
		for _, name := range []string{slot.key(index), removed} {
			b.add("ZRANGE", name, after, "+inf", "BYSCORE", "LIMIT", "0", strconv.Itoa(n), "WITHSCORES")
		}
	})
	if err != nil {
		return nil, false, err
	}
	if answers[0].IsNil() {
		return nil, false, errSnapshotLost
	}
	for _, a := range answers[1:] {
		some, err := a.AsZScores()
		if err != nil {
			return nil, false, unavailable(err)
		}
		entries = append(entries, some...)
		more = more || len(some) == n
	}
	slices.SortFunc(entries, func(a, b rueidis.ZScore) int { return cmp.Compare(a.Score, b.Score) })
	return entries[:min(n, len(entries))], more || len(entries) > n, nil
}

// locations returns where the counters were at the instant.
func (v *Snapshot) locations(ctx context.Context, ids []core.CounterID) ([]location, error) {
	locs := make([]location, len(ids))
	var which []int
	var names []string
	for i, id := range ids {
		if id.KeyID == "" {
			locs[i] = location{slot: v.s.o.usage(v.account, id.UserID), field: userField}
		} else {
			which, names = append(which, i), append(names, "k:"+id.KeyID)
		}
	}
	if len(which) == 0 {
		return locs, nil
	}
	values, err := v.records(ctx, names)
	if err != nil {
		return nil, err
	}
	for i, b := range values {
		if b == "" {
			return nil, core.ErrKeyNotFound
		}
		k, err := record.Decode[keyRecord]([]byte(b))
		if err != nil {
			return nil, err
		}
		locs[which[i]] = location{slot: v.s.o.usage(v.account, k.UserID), field: fieldOf(k.Seq)}
	}
	return locs, nil
}

// Counters implements [core.AccountReader].
func (v *Snapshot) Counters(ctx context.Context, ids []core.CounterID) ([]core.Counter, error) {
	list, _, err := v.counters(ctx, ids)
	return list, err
}

// CounterDays implements [core.AccountReader].
func (v *Snapshot) CounterDays(ctx context.Context, id core.CounterID) ([]core.CounterDay, error) {
	_, days, err := v.counters(ctx, []core.CounterID{id})
	if err != nil {
		return nil, err
	}
	return days[0].list(), nil
}

// counters reads counters and their days.
func (v *Snapshot) counters(ctx context.Context, ids []core.CounterID) (list []core.Counter, days []dayMap, err error) {
	locs, err := v.locations(ctx, ids)
	if err != nil {
		return nil, nil, err
	}
	if err := v.s.begin(); err != nil {
		return nil, nil, err
	}
	defer v.s.end()
	keys, args := make([][]string, len(locs)), make([][]string, len(locs))
	for i, at := range locs {
		keys[i] = []string{at.slot.counters(), at.slot.countersBefore(), at.slot.pastDays(at.field)}
		args[i] = []string{v.id}
		for _, f := range dayFields(at.field) {
			args[i] = append(args[i], f.name)
		}
		args[i] = append(args[i], metersField(at.field))
	}
	list, days = make([]core.Counter, len(ids)), make([]dayMap, len(ids))
	for i, r := range readSnapshotScript.readEach(ctx, v.s, keys, args) {
		parts, err := r.ToArray()
		switch {
		case err != nil:
			return nil, nil, unavailable(err)
		case number(parts[0]) == 0:
			return nil, nil, errSnapshotLost
		case len(parts) == 1: // there was no counter
			days[i] = dayMap{}
			continue
		}
		if list[i], days[i], err = decodeAsOf(locs[i].field, parts[1:]); err != nil {
			return nil, nil, err
		}
	}
	return list, days, nil
}

// decodeAsOf decodes the values that read_snapshot.lua returns.
func decodeAsOf(field string, parts []rueidis.RedisMessage) (c core.Counter, days dayMap, err error) {
	fields := dayFields(field)
	over, _ := text(parts[len(fields)+1])
	if days, _, err = decodeDays(fields, parts, over); err != nil {
		return c, nil, err
	}
	b, here := text(parts[0])
	if !here {
		return c, days, nil
	}
	meters, _ := text(parts[len(fields)])
	c, err = decodeWithMeters(b, meters)
	return c, days, err
}

// History implements [core.AccountReader].
func (v *Snapshot) History(ctx context.Context, of core.CounterID, since time.Time, p core.Page) (entries []core.Entry, total int, err error) {
	locs, err := v.locations(ctx, []core.CounterID{of})
	if err != nil {
		return nil, 0, err
	}
	if err := v.s.begin(); err != nil {
		return nil, 0, err
	}
	defer v.s.end()
	at := locs[0]
	entries, total, err = v.s.readHistoryOf(ctx, at, since, p, []string{at.slot.countersBefore(), at.slot.deletedHistory(at.field)}, []string{v.id, at.field})
	if err == nil && total < 0 {
		err = errSnapshotLost
	}
	return entries, total, err
}
