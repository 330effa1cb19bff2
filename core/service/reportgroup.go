package service

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/limitkeeper/limitkeeper/core"
)

// ReportNumbers are the numbers of a row of a report.
type ReportNumbers struct {
	core.MeterTraffic
	Overage  int64        // the usage beyond a limit that denies nothing
	Requests core.Traffic // the numbers of requests; 0 for other meters than requests
}

// add adds the numbers of m if sign is 1, and subtracts them if sign is -1. Each number stays from -MaxLimit to MaxLimit.
func (n *ReportNumbers) add(m *ReportNumbers, sign int64) {
	add := func(to *int64, by int64) { *to = core.AddSigned(*to, sign*by) }
	add(&n.Allowed, m.Allowed)
	add(&n.Denied, m.Denied)
	add(&n.Adjusted, m.Adjusted)
	add(&n.Overage, m.Overage)
	add(&n.Requests.Allowed, m.Requests.Allowed)
	add(&n.Requests.Denied, m.Requests.Denied)
}

// reportCell identifies a row among the rows of one user and key.
type reportCell struct {
	plan  string
	meter string
	date  core.Date
}

// reportGroup has the rows of one user and key, or of the whole account.
type reportGroup map[reportCell]*ReportNumbers

// cell returns the cell that counts the traffic of a plan and a meter on a day.
func (q *ReportQuery) cell(plan, meter string, date core.Date) (c reportCell) {
	if q.Plan {
		c.plan = plan
	}
	if c.meter = core.MeterRequests; q.Meter {
		c.meter = meter
	}
	switch {
	case q.Day:
		c.date = date
	case q.Month:
		c.date = date.FirstOfMonth(0)
	}
	return c
}

// add adds days to the group, or subtracts them if sign is -1. It skips days and meters outside the report.
func (g reportGroup) add(q *ReportQuery, plan string, days []core.CounterDay, sign int64) {
	var cell reportCell    // of the meter requests on the previous day. Most days have the same cell
	var sum *ReportNumbers // the numbers of this cell
	for i := range days {
		d := &days[i]
		if d.Date < q.First || d.Date > q.Last {
			continue
		}
		requests := ReportNumbers{MeterTraffic: core.MeterTraffic{Allowed: d.Allowed, Denied: d.Denied}, Requests: d.Traffic}
		for j := range d.Meters {
			switch m := &d.Meters[j]; {
			case m.Meter == core.MeterCount:
				requests.Requests.Allowed -= m.Allowed
				requests.Requests.Denied -= m.Denied
			case m.Meter == core.MeterRequests:
				requests.Adjusted = m.Adjusted
			case q.Meter:
				g.addTo(q.cell(plan, m.Meter, d.Date), &ReportNumbers{MeterTraffic: m.MeterTraffic}, sign)
			}
		}
		if c := q.cell(plan, core.MeterRequests, d.Date); sum == nil || c != cell {
			cell, sum = c, g.at(c)
		}
		sum.add(&requests, sign)
	}
}

// at returns the numbers of a cell. It adds a missing cell to the group.
func (g reportGroup) at(c reportCell) *ReportNumbers {
	if g[c] == nil {
		g[c] = &ReportNumbers{}
	}
	return g[c]
}

// addOverage adds the overage of a counter beyond its limits, by meter.
func (g reportGroup) addOverage(q *ReportQuery, plan string, days []core.DayTotals, limits map[string]core.Limit, anchors core.Anchors) {
	for meter, l := range limits {
		if !q.Meter && meter != core.MeterRequests {
			continue
		}
		for date, n := range core.OverageOn(days, l, anchors) {
			if q.First <= date && date <= q.Last {
				g.addTo(q.cell(plan, meter, date), &ReportNumbers{Overage: n}, 1)
			}
		}
	}
}

func (g reportGroup) addTo(c reportCell, n *ReportNumbers, sign int64) {
	if *n == (ReportNumbers{}) {
		return
	}
	g.at(c).add(n, sign)
}

// cells returns the cells with numbers other than 0, sorted by plan, date and meter. It removes the other cells.
func (g reportGroup) cells(planSeq func(id string) int64) []reportCell {
	maps.DeleteFunc(g, func(_ reportCell, n *ReportNumbers) bool { return *n == ReportNumbers{} })
	return slices.SortedFunc(maps.Keys(g), func(a, b reportCell) int {
		return cmp.Or(cmp.Compare(planSeq(a.plan), planSeq(b.plan)), cmp.Compare(a.date, b.date), strings.Compare(a.meter, b.meter))
	})
}
