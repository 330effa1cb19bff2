package archive

import (
	"bytes"
	"encoding/csv"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/limitkeeper/limitkeeper/adminapi"
	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/service"
)

// windowOf names the month of a user that contains a day. The month of bert begins on the 17th.
func windowOf(user string, date time.Time) string {
	if user == "bert" {
		date = date.AddDate(0, 0, -16)
	}
	return date.Format("2006-01")
}

// ownerOf returns the user of a counter.
func (m *month) ownerOf(counter string) string {
	for _, k := range m.keys {
		if k.name == counter {
			return k.user
		}
	}
	return counter
}

// used returns the usage of a counter in its month that contains a time.
func (m *month) used(counter, meter string, at time.Time) (sum int64) {
	user := m.ownerOf(counter)
	for _, n := range m.notes {
		if n.counter == counter && n.meter == meter && windowOf(user, n.date) == windowOf(user, at) {
			sum += n.allowed + n.adjusted
		}
	}
	return sum
}

// overage returns the usage of a counter in a range of days beyond its limit.
func (m *month) overage(counter, meter string, from, to time.Time) (sum int64) {
	user, limits := m.ownerOf(counter), exceeds[counter]
	if limits == nil {
		limits = exceeds["Team"]
	}
	if user != counter {
		limits = exceeds["Own"]
		if user == "bert" && meter == core.MeterRequests { // the override applies to the plans of keys, too
			limits = exceeds["bert"]
		}
	}
	limit, ok := limits[meter]
	if !ok {
		return 0
	}
	before, after := map[string]int64{}, map[string]int64{}
	for _, n := range m.notes {
		if n.counter != counter || n.meter != meter || !n.date.Before(to) {
			continue
		}
		w := windowOf(user, n.date)
		after[w] += n.allowed + n.adjusted
		if n.date.Before(from) {
			before[w] += n.allowed + n.adjusted
		}
	}
	for w := range after {
		sum += max(0, after[w]-limit) - max(0, before[w]-limit)
	}
	return sum
}

// row is a row of a reference: the first cells, and the numbers.
type row struct {
	group   string
	numbers [7]int64
}

// sum adds up the notes that match, in a range of days.
func (m *month) sum(meter string, from, to time.Time, matches func(*note) bool) (numbers [7]int64) {
	for i := range m.notes {
		n := &m.notes[i]
		if n.meter != meter || n.date.Before(from) || !n.date.Before(to) || !matches(n) {
			continue
		}
		for j, by := range []int64{n.allowed, n.denied, n.adjusted, n.allowed + n.adjusted, 0, n.requests[0], n.requests[1]} {
			numbers[j] += by
		}
	}
	return numbers
}

// text returns rows as CSV. Rows without numbers are left out.
func text(header string, rows []row) string {
	var b strings.Builder
	b.WriteString(header + "allowed,denied,adjusted,used,overage,requests_allowed,requests_denied\n")
	for _, r := range rows {
		if r.numbers == [7]int64{} {
			continue
		}
		b.WriteString(r.group)
		for i, n := range r.numbers {
			if i > 4 && !strings.HasSuffix(r.group, core.MeterRequests) {
				b.WriteString(",")
			} else {
				fmt.Fprintf(&b, ",%d", n)
			}
		}
		b.WriteString("\n")
	}
	return b.String()
}

func (m *month) meters() []string { return []string{core.MeterRequests, "spend", "tokens"} }

// quoted returns a cell of CSV.
func quoted(s string) string {
	var b bytes.Buffer
	w := csv.NewWriter(&b)
	_ = w.Write([]string{s})
	w.Flush()
	return strings.TrimSuffix(b.String(), "\n")
}

// names are the users that were not deleted, oldest first, then "" for the deleted users.
func (m *month) names() []string { return []string{"anna", "bert", "cara", ""} }

// userCells returns the first cells of the rows of a user.
func (m *month) userCells(name string) string {
	if name == "" {
		return ",,"
	}
	u := m.users[name]
	return fmt.Sprintf("%d,%s,%s", u.ID, u.ExternalID, quoted(name))
}

// of returns a filter for the notes of a user, or of the deleted users.
func (m *month) of(name string) func(*note) bool {
	return func(n *note) bool { return n.user == name || name == "" && m.users[n.user] == nil }
}

// byUser returns the rows by user, in ranges of days that each begin with some cells.
func (m *month) byUser(ranges [][2]time.Time, cells func(time.Time) string) (rows []row) {
	for _, name := range m.names() {
		for _, r := range ranges {
			for _, meter := range m.meters() {
				x := row{m.userCells(name) + cells(r[0]) + "," + meter, m.sum(meter, r[0], r[1], m.of(name))}
				if name != "" {
					x.numbers[4] = m.overage(name, meter, r[0], r[1])
					for _, k := range m.keys {
						if k.user == name && k.own != "" && !k.deleted {
							x.numbers[4] += m.overage(k.name, meter, r[0], r[1])
						}
					}
				}
				rows = append(rows, x)
			}
		}
	}
	return rows
}

// byKey returns the rows by key and plan.
func (m *month) byKey() (rows []row) {
	for _, name := range m.names() {
		rest := map[string][7]int64{}
		for _, meter := range m.meters() {
			rest[meter] = m.sum(meter, monthFrom, monthTo, m.of(name))
		}
		for _, k := range m.keys {
			if k.deleted || k.user != name {
				continue
			}
			plan := "Team"
			if k.own != "" {
				plan = k.own
			}
			for _, meter := range m.meters() {
				n := m.sum(meter, monthFrom, monthTo, func(n *note) bool { return n.key == k.name })
				left := rest[meter]
				for i := range n {
					left[i] -= n[i]
				}
				rest[meter] = left
				if k.own != "" {
					n[4] = m.overage(k.name, meter, monthFrom, monthTo)
				}
				rows = append(rows, row{fmt.Sprintf("%s,%s,%s,%s,%s,%s", m.userCells(name), k.id, quoted(k.name), m.plans[plan].ID, plan, meter), n})
			}
		}
		for _, meter := range m.meters() {
			n, plan := rest[meter], ","
			if name != "" {
				n[4], plan = m.overage(name, meter, monthFrom, monthTo), m.plans["Team"].ID+",Team"
			}
			rows = append(rows, row{fmt.Sprintf("%s,,,%s,%s", m.userCells(name), plan, meter), n})
		}
	}
	return rows
}

// checkHours compares the last hours of each user, and of the account, with the notes.
func (m *month) checkHours(when string, store core.Store) {
	m.t.Helper()
	const hours = core.HoursKept - 24 // a restore leaves out the oldest day
	last := core.HourOf(m.now)
	compare := func(of core.DaysFilter, matches func(*note) bool) {
		list, err := store.Days(m.t.Context(), of, last-hours+1, last)
		m.must(err)
		for _, h := range list {
			for _, meter := range m.meters() {
				var want core.MeterTraffic
				var requests core.Traffic
				for i := range m.notes {
					if n := &m.notes[i]; n.meter == meter && n.hour.Equal(h.Date.Start()) && matches(n) {
						want = want.Plus(core.MeterTraffic{Allowed: n.allowed, Denied: n.denied, Adjusted: n.adjusted})
						requests = requests.Plus(core.Traffic{Allowed: n.requests[0], Denied: n.requests[1]})
					}
				}
				if got := h.Of(meter); got != want || meter == core.MeterRequests && h.Requests() != requests {
					m.t.Errorf("%s, the hour %v of %+v: got %+v %s, %+v, want %+v, %+v", when, h.Date, of, got, meter, h.Requests(), want, requests)
				}
			}
		}
	}
	for _, name := range m.names() {
		if name != "" {
			compare(core.DaysFilter{Account: m.account, UserID: m.users[name].ID}, m.of(name))
		}
	}
	compare(core.DaysFilter{Account: m.account}, func(*note) bool { return true })
}

// check compares reports of a store with the notes.
func (m *month) check(when string, store core.Store) {
	m.t.Helper()
	m.checkHours(when, store)
	days := [][2]time.Time{}
	for d := monthFrom; d.Before(monthTo); d = d.AddDate(0, 0, 1) {
		days = append(days, [2]time.Time{d, d.AddDate(0, 0, 1)})
	}
	start := monthFrom.AddDate(0, -1, 0)
	const users = "user_id,external_id,user_name,"
	whole := [][2]time.Time{{monthFrom, monthTo}}
	var account []row
	for _, meter := range m.meters() {
		r := row{meter, m.sum(meter, monthFrom, monthTo, func(*note) bool { return true })}
		for _, u := range m.byUser(whole, func(time.Time) string { return "" }) {
			if strings.HasSuffix(u.group, ","+meter) {
				r.numbers[4] += u.numbers[4]
			}
		}
		account = append(account, r)
	}
	for query, want := range map[string]string{
		"from=2026-10-01&to=2026-11-01&group_by=user,meter": text(users+"meter,", m.byUser(whole, func(time.Time) string { return "" })),
		"from=2026-10-01&to=2026-11-01&group_by=user,day,meter": text(users+"day,meter,",
			m.byUser(days, func(d time.Time) string { return "," + d.Format(time.DateOnly) })),
		"from=2026-09-01&group_by=month,user,meter&to=2026-11-01": text(users+"month,meter,",
			m.byUser([][2]time.Time{{start, monthFrom}, {monthFrom, monthTo}}, func(d time.Time) string { return "," + d.Format("2006-01") })),
		"from=2026-10-01&group_by=key,plan,meter": text(users+"key_id,key_name,plan_id,plan_name,meter,", m.byKey()),
		"from=2026-10-01&group_by=meter":          text("meter,", account),
	} {
		values, err := url.ParseQuery(query)
		m.must(err)
		q, err := adminapi.ParseReport(values, core.DateOf(m.now))
		m.must(err)
		var got bytes.Buffer
		m.must(adminapi.WriteReport(m.t.Context(), service.New(store, service.Config{Clock: func() time.Time { return m.now }}), m.account, q, true, &got))
		if d := cmp.Diff(strings.Split(want, "\n"), strings.Split(got.String(), "\n")); d != "" {
			m.t.Errorf("%s, the report %s (-want +got):\n%.6000s", when, query, d)
		}
	}
}
