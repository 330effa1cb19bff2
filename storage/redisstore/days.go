package redisstore

import (
	"cmp"
	"context"
	"slices"
	"strconv"
	"sync"

	"github.com/redis/rueidis"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/record"
)

// Numbers of a day, as in scripts/day_counts.lua.
const (
	dayAllowed = iota
	dayDenied
	daySharedAllowed
	daySharedDenied
)

// dayField is a field of the hash of counters that holds one number of the latest day.
type dayField struct {
	name   string
	number int
}

// dayFields returns the day fields of a user or key. The first is the counter itself, which holds the
// allowed requests of its day.
func dayFields(field string) []dayField {
	if field == userField {
		return []dayField{{field, daySharedAllowed}, {"a", dayAllowed}, {"d", dayDenied}, {"s", daySharedDenied}}
	}
	return []dayField{{field, dayAllowed}, {"d" + field, dayDenied}}
}

// dayNumber returns a pointer to a number of a day.
func dayNumber(d *core.CounterDay, number int) *int64 {
	switch number {
	case dayAllowed:
		return &d.Allowed
	case dayDenied:
		return &d.Denied
	case daySharedAllowed:
		return &d.Shared.Allowed
	}
	return &d.Shared.Denied
}

// dayMap maps dates to the days of a user or key.
type dayMap map[core.Date]*core.CounterDay

func (d dayMap) set(number int, date core.Date, used int64) {
	if d[date] == nil {
		d[date] = &core.CounterDay{Date: date}
	}
	*dayNumber(d[date], number) = used
}

// Each number of a past day has a head of 4 bytes: the date, then numberBits for which number it is, then
// sizeBits for the size of the number in bytes.
const (
	numberBits = 2
	sizeBits   = 3
)

// addPast decodes past days.
func (d dayMap) addPast(over string) error {
	for r := record.NewReader([]byte(over)); !r.Ended(); {
		head := r.Uint(4)
		used := r.Uint(int(head % (1 << sizeBits)))
		if r.Failed() {
			return record.ErrDamaged
		}
		head >>= sizeBits
		d.set(int(head%(1<<numberBits)), core.Date(head>>numberBits), int64(used))
	}
	return nil
}

// appendPast encodes one number of a past day.
func appendPast(b []byte, number int, t core.WindowUsage) []byte {
	size := 7
	switch {
	case t.Used < 1<<8:
		size = 1
	case t.Used < 1<<16:
		size = 2
	}
	head := (uint64(t.Start/day)<<numberBits|uint64(number))<<sizeBits | uint64(size)
	return record.AppendUint(record.AppendUint(b, 4, head), size, uint64(t.Used))
}

// addCurrent adds the number of a latest day. It replaces an earlier value for that day.
func (d dayMap) addCurrent(number int, t core.WindowUsage) {
	if t != (core.WindowUsage{}) {
		d.set(number, t.Date(), t.Used)
	}
}

func decodeDayCount(b string) (t core.WindowUsage, err error) {
	r := record.NewReader([]byte(b))
	t.Start, t.Used = int64(r.Uint(3))*day, int64(r.Uint(7))
	if r.Failed() {
		err = record.ErrDamaged
	}
	return t, err
}

func encodeDayCount(t core.WindowUsage) string {
	return string(record.AppendUint(record.AppendUint(nil, 3, uint64(t.Start/day)), 7, uint64(t.Used)))
}

// Days implements [core.Store].
func (s *Store) Days(ctx context.Context, of core.DaysFilter, first, last core.Date) ([]core.DayTotals, error) {
	if err := s.begin(); err != nil {
		return nil, err
	}
	defer s.end()
	list := core.NewDays(first, last)
	add := func(date core.Date, t core.Traffic) {
		if first <= date && date <= last {
			sum := &list[date-first].Traffic
			*sum = sum.Plus(t)
		}
	}
	whole := func(d *core.CounterDay) { add(d.Date, d.Traffic) }
	shared := func(d *core.CounterDay) { add(d.Date, d.Shared) }
	read := s.readDays
	if first == last {
		read = func(ctx context.Context, locs []location) ([]counterDays, []int, error) {
			return s.readDay(ctx, locs, first)
		}
	}
	var err error
	n := s.o.account(of.Account)
	switch {
	case of.KeyID != "" || of.UserID != 0:
		err = s.eachDay(ctx, []core.CounterID{{Account: of.Account, KeyID: of.KeyID, UserID: of.UserID}}, read, whole)
	case of.PlanID != "":
		if err = s.eachDayInIndex(ctx, n.keys(core.KeyFilter{PlanID: &of.PlanID}), keyCounterID(of.Account), read, whole); err == nil {
			err = s.eachDayInIndex(ctx, n.users(core.UserFilter{PlanID: of.PlanID}), userCounterID(of.Account), read, shared)
		}
	default:
		err = s.eachDayInIndex(ctx, n.users(core.UserFilter{}), userCounterID(of.Account), read, whole)
	}
	if err != nil {
		return nil, err
	}
	return list, nil
}

// counterDays are the days of a user or key, and its counter.
type counterDays struct {
	dayMap
	counter         core.Counter // without other meters if a single day was read
	notMoving       bool         // the counter exists, and is not about to move
	allowed, latest core.Date    // date in the counter, and the latest date in all fields
}

// dayReader returns the days at the locations. missing are the indexes of counters that do not exist or
// are about to move.
type dayReader func(context.Context, []location) (all []counterDays, missing []int, err error)

// eachDayInIndex calls fn with the days of all users or keys in an index, in no order and never
// concurrently.
func (s *Store) eachDayInIndex(ctx context.Context, index string, counter func(id string) core.CounterID,
	read dayReader, fn func(*core.CounterDay)) error {
	var mu sync.Mutex
	return s.scanIndex(ctx, index, counter, func(ctx context.Context, ids []core.CounterID) error {
		return s.eachDay(ctx, ids, read, func(d *core.CounterDay) {
			mu.Lock()
			defer mu.Unlock()
			fn(d)
		})
	})
}

// eachDay calls fn with the days of some users or keys, in no order.
func (s *Store) eachDay(ctx context.Context, ids []core.CounterID, read dayReader, fn func(*core.CounterDay)) error {
	all, err := readLocated(ctx, s, ids, func(locs []location) ([]counterDays, []int, error) { return read(ctx, locs) })
	if err != nil {
		return err
	}
	for _, c := range all {
		for _, d := range c.dayMap {
			fn(d)
		}
	}
	return nil
}

// readDays is a dayReader for all days.
func (s *Store) readDays(ctx context.Context, locs []location) (all []counterDays, missing []int, err error) {
	return s.readDaysAt(ctx, locs, existing(locs))
}

// readDaysAt reads the days at some of the locations, given as indexes. The others stay empty.
func (s *Store) readDaysAt(ctx context.Context, locs []location, which []int) (all []counterDays, missing []int, err error) {
	keys, args := make([][]string, len(which)), make([][]string, len(which))
	for i, at := range which {
		p := locs[at]
		keys[i] = []string{p.slot.counters(), p.slot.pastDays(p.field)}
		for _, f := range dayFields(p.field) {
			args[i] = append(args[i], f.name)
		}
		args[i] = append(args[i], metersField(p.field))
	}
	all = make([]counterDays, len(locs))
	for i, r := range readDaysScript.readEach(ctx, s, keys, args) {
		parts, err := r.ToArray()
		if err != nil {
			return nil, nil, unavailable(err)
		}
		at := which[i]
		fields := dayFields(locs[at].field)
		meters, _ := text(parts[len(fields)])
		over, _ := text(parts[len(fields)+1])
		if all[at], err = decodeDays(fields, parts, meters, over); err != nil {
			return nil, nil, err
		}
		if !all[at].notMoving {
			missing = append(missing, at)
		}
	}
	return all, missing, nil
}

// readDay is a dayReader for one day. It reads past days only for counters whose latest day is another
// one.
func (s *Store) readDay(ctx context.Context, locs []location, day core.Date) (all []counterDays, missing []int, err error) {
	which := existing(locs)
	cmds := make([]rueidis.Completed, len(which))
	for i, at := range which {
		cmd := s.client.B().Hmget().Key(locs[at].slot.counters()).Field()
		for _, f := range dayFields(locs[at].field) {
			cmd = cmd.Field(f.name)
		}
		cmds[i] = cmd.Build()
	}
	all = make([]counterDays, len(locs))
	var earlier []int
	for i, r := range s.doMany(ctx, cmds) {
		parts, err := r.ToArray()
		if err != nil {
			return nil, nil, unavailable(err)
		}
		at := which[i]
		c, err := decodeDays(dayFields(locs[at].field), parts, "", "")
		switch {
		case err != nil:
			return nil, nil, err
		case c.allowed != day || c.latest != day:
			earlier = append(earlier, at)
		case !c.notMoving:
			all[at], missing = c, append(missing, at)
		default:
			all[at] = c
		}
	}
	if len(earlier) == 0 {
		return all, missing, nil
	}
	more, moreMissing, err := s.readDaysAt(ctx, locs, earlier)
	if err != nil {
		return nil, nil, err
	}
	for _, at := range earlier {
		all[at] = more[at]
	}
	return all, append(missing, moreMissing...), nil
}

// decodeDays decodes the counter and the latest days from fields, and the past days.
func decodeDays(fields []dayField, parts []rueidis.RedisMessage, meters, over string) (c counterDays, err error) {
	c.dayMap = dayMap{}
	if err := c.addPast(over); err != nil {
		return c, err
	}
	for i, f := range fields {
		b, ok := text(parts[i])
		if !ok {
			continue
		}
		var t core.WindowUsage
		if i == 0 {
			c.counter, err = decodeWithMeters(b, meters)
			t = c.counter.Day()
			c.notMoving, c.allowed = err == nil && !isMoving(b), t.Date()
		} else {
			t, err = decodeDayCount(b)
		}
		if err != nil {
			return c, err
		}
		c.addCurrent(f.number, t)
		c.latest = max(c.latest, t.Date())
	}
	return c, nil
}

// CounterDays implements [core.Importer].
func (s *Store) CounterDays(ctx context.Context, id core.CounterID) ([]core.CounterDay, error) {
	_, days, err := s.CountersWithDays(ctx, []core.CounterID{id})
	if err != nil {
		return nil, err
	}
	return days[0], nil
}

// CountersWithDays implements [core.LiveStore]: one script reads a counter and its days.
func (s *Store) CountersWithDays(ctx context.Context, ids []core.CounterID) ([]core.Counter, [][]core.CounterDay, error) {
	if err := s.begin(); err != nil {
		return nil, nil, err
	}
	defer s.end()
	all, err := readLocated(ctx, s, ids, func(locs []location) ([]counterDays, []int, error) { return s.readDays(ctx, locs) })
	if err != nil {
		return nil, nil, err
	}
	counters, days := make([]core.Counter, len(ids)), make([][]core.CounterDay, len(ids))
	for i, c := range all {
		counters[i], days[i] = c.counter, c.list()
	}
	return counters, days, nil
}

// list returns the days with traffic, oldest first.
func (d dayMap) list() (list []core.CounterDay) {
	for _, day := range d {
		if *day != (core.CounterDay{Date: day.Date}) {
			list = append(list, *day)
		}
	}
	slices.SortFunc(list, func(a, b core.CounterDay) int { return cmp.Compare(a.Date, b.Date) })
	return list
}

// pastDaysTTL is how long past days live after the last write, in milliseconds.
var pastDaysTTL = strconv.Itoa((core.DaysKept + 1) * day * 1000)

// SetDays implements [core.Importer].
func (s *Store) SetDays(ctx context.Context, id core.CounterID, days []core.CounterDay) error {
	if err := s.begin(); err != nil {
		return err
	}
	defer s.end()
	locs, err := s.locations(ctx, []core.CounterID{id})
	if err != nil {
		return err
	}
	at := locs[0]
	over, latest := encodeDays(dayFields(at.field), days)
	return s.setAt(ctx, id, at, setDaysScript, []string{at.slot.counters(), at.slot.pastDays(at.field)},
		append([]string{at.field, over, pastDaysTTL}, latest...))
}

// encodeDays returns the stored form of days: the past days, and pairs of field and value for the latest
// days.
func encodeDays(fields []dayField, days []core.CounterDay) (over string, latest []string) {
	var b []byte
	for i, f := range fields {
		var last core.WindowUsage
		for _, d := range days {
			used := min(*dayNumber(&d, f.number), maxUsed)
			if used == 0 {
				continue
			}
			if last.Used > 0 {
				b = appendPast(b, f.number, last)
			}
			last = core.WindowUsage{Start: int64(max(0, d.Date)) * day, Used: used}
		}
		value := ""
		switch {
		case last.Used == 0:
		case i == 0: // the counter holds its own latest day, which may differ
			b = appendPast(b, f.number, last)
		default:
			value = encodeDayCount(last)
		}
		if i > 0 {
			latest = append(latest, f.name, value)
		}
	}
	return string(b), latest
}
