package document

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/limitkeeper/limitkeeper/core"
)

// The texts of faults to which readers of YAML add a hint.
const (
	WantText  = "Must be a string"
	WantWhole = "Must be a whole number"
)

// The texts of faults of several places.
const (
	wantLimits    = "Must be an array of limits, such as {\"meter\": \"tokens\", \"max\": 1000, \"period\": \"month\"}"
	wantOverrides = "Must be an array of overrides, such as {\"meter\": \"requests\", \"max\": 1000, \"period\": \"month\", \"until\": \"2030-01-31T00:00:00Z\"}"
	wantRate      = "Must be a rate, such as {\"requests\": 10, \"per\": \"second\", \"burst\": 20}"
)

// readers read the values of each type of members but limits and rates. want is the text of the fault.
var readers = map[core.MemberType]struct {
	want string
	read func(*Value) (any, bool)
}{
	core.TypeText:   {WantText, boxed(text)},
	core.TypeTexts:  {"Must be an array of strings", boxed(texts)},
	core.TypeFlag:   {"Must be true or false", boxed(flag)},
	core.TypeWhole:  {WantWhole, boxed(Whole)},
	core.TypeTime:   {"Must be a time as in RFC 3339, such as 2030-01-31T00:00:00Z", boxed(instant)},
	core.TypeStart:  {"Must be a time as in RFC 3339, or a date, from 1970 on, such as 2030-01-31T00:00:00Z or 2030-01-31", boxed(start)},
	core.TypeObject: {"Must be a value as in JSON", boxed(raw)},
}

func boxed[T any](read func(*Value) (T, bool)) func(*Value) (any, bool) {
	return func(v *Value) (any, bool) { return read(v) }
}

// text returns a string that keeps no other text in memory.
func text(v *Value) (string, bool) { return strings.Clone(v.Text), v.Kind == '"' }

func flag(v *Value) (bool, bool) { return v.Kind == 't', v.Kind == 't' || v.Kind == 'f' }

// Whole returns a whole number in any notation: 5, 5.0, 50e-1. A number with more digits than a float64 has is the nearest float64, as for
// most readers of JSON (RFC 8259 section 6), unless it is an int64. A number outside int64 becomes math.MaxInt64 or -math.MaxInt64,
// which is outside the range of every member.
func Whole(v *Value) (int64, bool) {
	if v.Kind != '0' || !jsontext.Value(v.Text).IsValid() {
		return 0, false
	}
	if n, err := strconv.ParseInt(v.Text, 10, 64); err == nil {
		return max(n, -math.MaxInt64), true
	}
	f, _ := strconv.ParseFloat(v.Text, 64) // out of range, it is infinite
	mantissa, _, _ := strings.Cut(strings.ToLower(v.Text), "e")
	switch {
	case f == 0:
		return 0, !strings.ContainsAny(mantissa, "123456789") // else it is too small for a float64
	case f >= math.MaxInt64:
		return math.MaxInt64, true
	case f <= -math.MaxInt64:
		return -math.MaxInt64, true
	}
	return int64(f), f == math.Trunc(f)
}

func texts(v *Value) ([]string, bool) {
	v.Open()
	list := make([]string, len(v.Items))
	for i := range v.Items {
		if v.Items[i].Kind != '"' {
			return nil, false
		}
		list[i] = strings.Clone(v.Items[i].Text)
	}
	return list, v.Kind == '['
}

// instant returns a time, truncated to the millisecond as in the store.
func instant(v *Value) (t time.Time, ok bool) {
	err := t.UnmarshalText([]byte(v.Text))
	y := t.UTC().Year()
	return t.UTC().Truncate(time.Millisecond), v.Kind == '"' && err == nil && y >= 0 && y <= 9999
}

// start returns a start of windows: an instant, or the beginning of a day in UTC.
func start(v *Value) (time.Time, bool) {
	t, err := time.Parse(time.RFC3339, v.Text)
	if err != nil {
		t, err = time.Parse(time.DateOnly, v.Text)
	}
	y := t.UTC().Year()
	return t.UTC(), v.Kind == '"' && err == nil && y >= 1970 && y <= 9999
}

// raw returns the JSON text of a value. core checks that it is an object.
func raw(v *Value) (json.RawMessage, bool) {
	text, ok := v.JSON()
	return json.RawMessage(text), ok
}

// limits reads a list of limits or overrides. Each has a meter, a max and a period; add takes them with the rest of the object.
func (o *Object) limits(name, want string, add func(*Object, core.Limit)) {
	v := o.Take(name)
	if v.Kind != '[' {
		o.Wrong(name, want)
		return
	}
	v.Open()
	for i := range min(len(v.Items), core.MaxLimits+1) { // core refuses so many
		one := NewObject(&v.Items[i], fmt.Sprintf("%s[%d]", Join(o.Path, name), i), want, o.fault)
		if one == nil {
			return
		}
		meter, most, period := one.Text("meter"), one.Whole("max"), one.Text("period")
		l := core.Limit{Meter: core.OrZero(meter), Max: core.OrZero(most)}
		if period != nil {
			var err error
			if l.Period, err = core.ParsePeriod(*period); err != nil {
				one.Wrong("period", "Must be one of "+core.PeriodNames(core.Periods()))
			}
		}
		add(one, l)
		one.End(nil)
		for _, member := range []string{"meter", "max", "period"} {
			if !one.Has(member) {
				one.fault(one.Line, one.Path, "A limit has a meter, a max and a period")
				break
			}
		}
	}
}

// limitList returns limits with their on_exceed.
func (o *Object) limitList(name string) (list []core.Limit) {
	o.limits(name, wantLimits, func(one *Object, l core.Limit) {
		if word := one.Text("on_exceed"); word != nil {
			var ok bool
			if l.OnExceed, ok = core.ParseOnExceed(*word); !ok {
				one.Wrong("on_exceed", "Must be deny or allow")
			}
		}
		list = append(list, l)
	})
	return list
}

// overrides returns the overrides of a user, each with its end.
func (o *Object) overrides(name string) (list []core.Override) {
	o.limits(name, wantOverrides, func(one *Object, l core.Limit) {
		by := core.Override{Meter: l.Meter, Max: l.Max, Period: l.Period}
		if until, _ := one.Member("until", core.TypeTime, true); until != nil {
			by.Until = new(until.(time.Time))
		}
		list = append(list, by)
	})
	return list
}

// rate returns the rate of a plan. Its burst is its requests unless it is given.
func (o *Object) rate(name string) (rate core.Rate) {
	one := NewObject(o.Take(name), Join(o.Path, name), wantRate, o.fault)
	if one == nil {
		return rate
	}
	requests, per, burst := one.Whole("requests"), one.Text("per"), one.Whole("burst")
	one.End(nil)
	if !one.Has("requests") || !one.Has("per") {
		one.fault(one.Line, one.Path, wantRate)
	}
	if requests == nil || per == nil {
		return rate
	}
	rate = core.Rate{Requests: *requests, Per: core.RatePer(*per), Burst: *requests}
	if burst != nil {
		rate.Burst = *burst
	}
	return rate
}

// Member returns the value of a member of a type of core, and whether it is there and right. It is nil for null, if that is allowed.
func (o *Object) Member(name string, typ core.MemberType, nullable bool) (v any, ok bool) {
	if at := o.Take(name); at == nil || nullable && at.Kind == 'n' {
		return nil, at != nil
	}
	before := o.faults
	switch typ {
	case core.TypeLimits:
		v = o.limitList(name)
	case core.TypeOverrides:
		v = o.overrides(name)
	case core.TypeRate:
		v = o.rate(name)
	default:
		v, _ = value(o, name, readers[typ].want, readers[typ].read)
	}
	return v, o.faults == before
}

// Read reads members into a patch, but for some.
func Read[R, P any](o *Object, ms *core.Members[R, P], p *P, except ...string) {
	for i := range ms.List {
		m := &ms.List[i]
		if slices.Contains(except, m.Name) {
			continue
		}
		if v, ok := o.Member(m.Name, m.Type, m.Nullable); ok {
			m.Set(p, v)
		}
	}
}
