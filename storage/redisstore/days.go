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

// The numbers of a day, as scripts/tallies.lua has them.
const (
	dayAllowed = iota
	dayDenied
	daySharedAllowed
	daySharedDenied
)

// tallyField is a field of the counters with the tally of a number.
type tallyField struct {
	name   string
	number int
}

// tallyFields returns those of a user or key. The first is the counter, with the tally of what
// it allowed.
func tallyFields(field string) []tallyField {
	if field == userField {
		return []tallyField{{field, daySharedAllowed}, {"a", dayAllowed}, {"d", dayDenied}, {"s", daySharedDenied}}
	}
	return []tallyField{{field, dayAllowed}, {"d" + field, dayDenied}}
}

// numberOf returns a number of a day, to be read or set.
func numberOf(d *core.CounterDay, number int) *int64 {
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

// daily are the days of a user or key.
type daily map[core.Date]*core.CounterDay

func (d daily) set(number int, date core.Date, used int64) {
	if d[date] == nil {
		d[date] = &core.CounterDay{Date: date}
	}
	*numberOf(d[date], number) = used
}

// Before a tally of a day that is over stands the day, then in so many bits which number it
// is, and in how many bytes that is written.
const (
	numberBits = 2
	sizeBits   = 3
)

// addOver adds days that are over.
func (d daily) addOver(over string) error {
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

// appendOver appends the tally of a number on a day that is over.
func appendOver(b []byte, number int, t core.WindowUsage) []byte {
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

// addTally adds a tally: what it says of its day is later than what is over.
func (d daily) addTally(number int, t core.WindowUsage) {
	if t != (core.WindowUsage{}) {
		d.set(number, t.Date(), t.Used)
	}
}

func decodeTally(b string) (t core.WindowUsage, err error) {
	r := record.NewReader([]byte(b))
	t.Start, t.Used = int64(r.Uint(3))*day, int64(r.Uint(7))
	if r.Failed() {
		err = record.ErrDamaged
	}
	return t, err
}

func encodeTally(t core.WindowUsage) string {
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
	read := s.daily
	if first == last {
		read = func(ctx context.Context, places []place) ([]daily, []int, error) {
			return s.dailyOn(ctx, places, first)
		}
	}
	var err error
	n := s.o.account(of.Account)
	switch {
	case of.KeyID != "" || of.UserID != 0:
		err = s.eachDay(ctx, []core.CounterID{{Account: of.Account, KeyID: of.KeyID, UserID: of.UserID}}, read, whole)
	case of.PlanID != "":
		if err = s.eachDayOf(ctx, n.keys(core.KeyFilter{PlanID: &of.PlanID}), keyOf(of.Account), read, whole); err == nil {
			err = s.eachDayOf(ctx, n.users(core.UserFilter{PlanID: of.PlanID}), userOf(of.Account), read, shared)
		}
	default:
		err = s.eachDayOf(ctx, n.users(core.UserFilter{}), userOf(of.Account), read, whole)
	}
	if err != nil {
		return nil, err
	}
	return list, nil
}

// dailyReader returns the days at some places, and at which of them there is no counter that is
// there to stay.
type dailyReader func(context.Context, []place) (all []daily, missing []int, err error)

// eachDayOf calls fn with the days of all users or keys of an index, in no order and never
// twice at the same time.
func (s *Store) eachDayOf(ctx context.Context, index string, counter func(id string) core.CounterID,
	read dailyReader, fn func(*core.CounterDay)) error {
	var mu sync.Mutex
	return s.eachPart(ctx, index, counter, func(ctx context.Context, ids []core.CounterID) error {
		return s.eachDay(ctx, ids, read, func(d *core.CounterDay) {
			mu.Lock()
			defer mu.Unlock()
			fn(d)
		})
	})
}

// eachDay calls fn with the days of some users or keys, in no order.
func (s *Store) eachDay(ctx context.Context, ids []core.CounterID, read dailyReader, fn func(*core.CounterDay)) error {
	all, err := atPlaces(ctx, s, ids, func(places []place) ([]daily, []int, error) { return read(ctx, places) })
	if err != nil {
		return err
	}
	for _, days := range all {
		for _, d := range days {
			fn(d)
		}
	}
	return nil
}

// daily is a dailyReader of all days.
func (s *Store) daily(ctx context.Context, places []place) (all []daily, missing []int, err error) {
	return s.dailyAt(ctx, places, placed(places))
}

// dailyAt is daily for some of the places: of the others there is nothing.
func (s *Store) dailyAt(ctx context.Context, places []place, which []int) (all []daily, missing []int, err error) {
	keys, args := make([][]string, len(which)), make([][]string, len(which))
	for i, at := range which {
		p := places[at]
		keys[i] = []string{p.names.counters(), p.names.tallies(p.field)}
		for _, f := range tallyFields(p.field) {
			args[i] = append(args[i], f.name)
		}
	}
	all = make([]daily, len(places))
	for i, r := range daysScript.readEach(ctx, s, keys, args) {
		parts, err := r.ToArray()
		if err != nil {
			return nil, nil, unavailable(err)
		}
		at := which[i]
		fields := tallyFields(places[at].field)
		over, _ := text(parts[len(fields)])
		days, c, err := decodeDaily(fields, parts, over)
		if err != nil {
			return nil, nil, err
		}
		if all[at] = days; !c.stays {
			missing = append(missing, at)
		}
	}
	return all, missing, nil
}

// dailyOn is a dailyReader of one day. Where it is that of the latest requests, as it mostly
// is, it is in the counters: the days that are over are read only where it is not.
func (s *Store) dailyOn(ctx context.Context, places []place, day core.Date) (all []daily, missing []int, err error) {
	which := placed(places)
	cmds := make([]rueidis.Completed, len(which))
	for i, at := range which {
		cmd := s.client.B().Hmget().Key(places[at].names.counters()).Field()
		for _, f := range tallyFields(places[at].field) {
			cmd = cmd.Field(f.name)
		}
		cmds[i] = cmd.Build()
	}
	all = make([]daily, len(places))
	var earlier []int
	for i, r := range s.doMany(ctx, cmds) {
		parts, err := r.ToArray()
		if err != nil {
			return nil, nil, unavailable(err)
		}
		at := which[i]
		days, c, err := decodeDaily(tallyFields(places[at].field), parts, "")
		switch {
		case err != nil:
			return nil, nil, err
		case c.allowed != day || c.latest != day:
			earlier = append(earlier, at)
		case !c.stays:
			all[at], missing = days, append(missing, at)
		default:
			all[at] = days
		}
	}
	if len(earlier) == 0 {
		return all, missing, nil
	}
	more, moreMissing, err := s.dailyAt(ctx, places, earlier)
	if err != nil {
		return nil, nil, err
	}
	for _, at := range earlier {
		all[at] = more[at]
	}
	return all, append(missing, moreMissing...), nil
}

// dailyCounter is what decodeDaily finds out beside.
type dailyCounter struct {
	stays           bool      // the counter is there to stay
	allowed, latest core.Date // the days of its own tally, and of the latest
}

// decodeDaily returns the days that are in fields, and those that are over.
func decodeDaily(fields []tallyField, parts []rueidis.RedisMessage, over string) (days daily, c dailyCounter, err error) {
	days = daily{}
	if err := days.addOver(over); err != nil {
		return nil, c, err
	}
	for i, f := range fields {
		b, ok := text(parts[i])
		if !ok {
			continue
		}
		var t core.WindowUsage
		if i == 0 {
			var counter core.Counter
			counter, err = decodeCounter(b)
			t = counter.Windows[core.Day]
			c.stays, c.allowed = err == nil && !leaves(b), t.Date()
		} else {
			t, err = decodeTally(b)
		}
		if err != nil {
			return nil, c, err
		}
		days.addTally(f.number, t)
		c.latest = max(c.latest, t.Date())
	}
	return days, c, nil
}

// CounterDays implements [core.Importer].
func (s *Store) CounterDays(ctx context.Context, id core.CounterID) (list []core.CounterDay, err error) {
	if err := s.begin(); err != nil {
		return nil, err
	}
	defer s.end()
	err = s.eachDay(ctx, []core.CounterID{id}, s.daily, func(d *core.CounterDay) {
		if *d != (core.CounterDay{Date: d.Date}) {
			list = append(list, *d)
		}
	})
	slices.SortFunc(list, func(a, b core.CounterDay) int { return cmp.Compare(a.Date, b.Date) })
	return list, err
}

// daysLive is for how long days that are over are kept after the last of them has come, in
// milliseconds.
var daysLive = strconv.Itoa((core.DaysKept + 1) * day * 1000)

// SetDays implements [core.Importer].
func (s *Store) SetDays(ctx context.Context, id core.CounterID, days []core.CounterDay) error {
	if err := s.begin(); err != nil {
		return err
	}
	defer s.end()
	places, err := s.places(ctx, []core.CounterID{id})
	if err != nil {
		return err
	}
	at := places[0]
	over, tallies := encodeDays(tallyFields(at.field), days)
	return s.set(ctx, id, at, setDaysScript, []string{at.names.counters(), at.names.tallies(at.field)},
		append([]string{at.field, over, daysLive}, tallies...))
}

// encodeDays returns days as they are stored: those that are over, and the tallies of the last
// ones by their fields.
func encodeDays(fields []tallyField, days []core.CounterDay) (over string, tallies []string) {
	var b []byte
	for i, f := range fields {
		var last core.WindowUsage
		for _, d := range days {
			used := min(*numberOf(&d, f.number), maxUsed)
			if used == 0 {
				continue
			}
			if last.Used > 0 {
				b = appendOver(b, f.number, last)
			}
			last = core.WindowUsage{Start: int64(max(0, d.Date)) * day, Used: used}
		}
		tally := ""
		switch {
		case last.Used == 0:
		case i == 0: // the counter has its tally: of this day, or of another one
			b = appendOver(b, f.number, last)
		default:
			tally = encodeTally(last)
		}
		if i > 0 {
			tallies = append(tallies, f.name, tally)
		}
	}
	return string(b), tallies
}
