package storetest

import (
	"encoding/json"
	"fmt"
	"time"

	"pgregory.net/rapid"

	"github.com/limitkeeper/limitkeeper/core"
)

// drawMembers draws a value of each independent member, and sets the members whose value the rules of core accept. The values follow from the
// description of the member, so a new member needs no change here.
func drawMembers[R, P any](m *machine, t *rapid.T, ms *core.Members[R, P], r *R) {
	for i := range ms.List {
		member := &ms.List[i]
		if !member.Independent() {
			continue
		}
		var p P
		member.Set(&p, drawMember(m, t, member))
		if changed := *r; ms.Apply(&p, &changed) == nil {
			*r = changed
		}
	}
}

// texts are few, so that users clash. Some contain others. Each member has some of them, by its rule.
var texts = []string{"", "a@example.com", "A@Example.com", "ä@example.com", "Ä@EXAMPLE.com", "b@example.com", "bb@example.com",
	"a", "A", "ä", awkward, awkwardName}

// drawMember draws a value by the type of a member, sometimes nil for a nullable one.
func drawMember[R, P any](m *machine, t *rapid.T, member *core.Member[R, P]) any {
	if member.Nullable && rapid.IntRange(0, 2).Draw(t, "no "+member.Name) == 0 {
		return nil
	}
	switch member.Type {
	case core.TypeText:
		if member.Words != nil {
			return oneOf(t, member.Name, member.Words...)
		}
		return oneOf(t, member.Name, texts...)
	case core.TypeTexts:
		return oneOf(t, member.Name, []string{}, []string{"a"}, []string{"b", ""}, []string{"GET /v1/a*", "*"}, []string{"192.0.2.7", "2001:db8::/32"})
	case core.TypeFlag:
		return rapid.Bool().Draw(t, member.Name)
	case core.TypeWhole:
		return rapid.Int64Range(1, core.MaxLimit).Draw(t, member.Name)
	case core.TypeTime:
		return m.someNow()
	case core.TypeStart:
		return m.someNow().UTC().Truncate(time.Second)
	case core.TypeObject:
		return oneOf(t, member.Name, awkwardJSON, json.RawMessage("{}"))
	case core.TypeLimits:
		return rapid.SliceOfN(rapid.Custom(drawLimit), 0, 3).Draw(t, member.Name)
	case core.TypeOverrides:
		return rapid.SliceOfN(rapid.Custom(m.drawOverride), 0, 3).Draw(t, member.Name)
	case core.TypeRate:
		return core.Rate{Requests: rapid.Int64Range(1, 3).Draw(t, "requests"), Burst: rapid.Int64Range(1, 3).Draw(t, "burst"),
			Per: oneOf(t, "per", core.PerSecond, core.PerMinute)}
	}
	panic(fmt.Sprintf("the member %s has the type %s, of which no values are drawn", member.Name, member.Type))
}

func drawLimit(t *rapid.T) core.Limit {
	return core.Limit{Meter: oneOf(t, "meter", core.MeterRequests, "tokens"), Max: rapid.Int64Range(1, core.MaxLimit).Draw(t, "max"),
		Period: oneOf(t, "period", core.Periods()...), OnExceed: core.OnExceed(rapid.Bool().Draw(t, "on exceed"))}
}

func (m *machine) drawOverride(t *rapid.T) core.Override {
	l := drawLimit(t)
	o := core.Override{Meter: l.Meter, Max: l.Max, Period: l.Period}
	if rapid.Bool().Draw(t, "ends") {
		o.Until = new(m.someNow())
	}
	return o
}

func oneOf[T any](t *rapid.T, label string, values ...T) T {
	return rapid.SampledFrom(values).Draw(t, label)
}
