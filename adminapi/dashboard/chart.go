package dashboard

import (
	"slices"
	"strconv"
	"strings"

	"github.com/dustin/go-humanize"

	"github.com/limitkeeper/limitkeeper/core"
)

// Charts are SVG, rendered on the server: they need no script and cause no layout shift. A table has
// the same data for screen readers.

// The dimensions of a chart in SVG units. CSS scales the chart.
const (
	chartWidth  = 720
	chartHeight = 180
	chartTop    = 12 // above the highest bar
)

// spans are the choices for the number of days in a chart.
var spans = []int{30, 90, 365}

// chart shows the traffic on some days.
type chart struct {
	What          string // the title, such as "Requests of Ann"
	core.Traffic         // total of all days
	From, To      core.Date
	Width, Height int
	Bars          []bar
	Lines         []line
	Dates         []string         // labels of the x axis: first, middle and last day
	Newest        []core.DayTotals // newest day first
	Spans         []span
}

// bar is the bar of one day: allowed requests, and denied requests on top.
type bar struct {
	core.DayTotals
	X, W            float64
	AllowedY, Allow float64 // top edge and height
	DeniedY, Deny   float64
	Title           string
}

// line is a horizontal grid line at a round number.
type line struct {
	Y    float64
	Text string
}

type span struct {
	Days    int
	Href    string
	Current bool
}

// span returns the number of days in the chart of the page.
func (q *request) span() int {
	for _, n := range spans {
		if q.r.URL.Query().Get("days") == strconv.Itoa(n) {
			return n
		}
	}
	return spans[0]
}

// days returns the first and the last day in the chart of the page.
func (q *request) days() (first, last core.Date) {
	last = q.svc.Today()
	return last - core.Date(q.span()) + 1, last
}

// chart returns the chart of a page, for which list returns the traffic.
func (q *request) chart(what string, list func(first, last core.Date) ([]core.DayTotals, error)) (*chart, error) {
	days, err := list(q.days())
	if err != nil {
		return nil, err
	}
	c := &chart{What: what, Width: chartWidth, Height: chartHeight, From: days[0].Date, To: days[len(days)-1].Date}
	for _, n := range spans {
		c.Spans = append(c.Spans, span{n, q.with("days", strconv.Itoa(n)), n == q.span()})
	}
	most := int64(0)
	for _, d := range days {
		c.Traffic = c.Plus(d.Traffic)
		most = max(most, core.Traffic{Allowed: d.Allowed}.Plus(core.Traffic{Allowed: d.Denied}).Allowed)
	}
	top := roundUp(most)
	scale := float64(chartHeight-chartTop) / float64(max(top, 1))
	c.Bars = bars(days, scale)
	c.Lines = []line{{chartHeight, "0"}}
	if most > 0 {
		for _, v := range []int64{top / 2, top} {
			c.Lines = append(c.Lines, line{chartHeight - float64(v)*scale, short(v)})
		}
	}
	for _, d := range []core.Date{c.From, days[len(days)/2].Date} {
		c.Dates = append(c.Dates, d.Start().Format("2 Jan"))
	}
	c.Dates = append(c.Dates, "today")
	c.Newest = slices.Clone(days)
	slices.Reverse(c.Newest)
	return c, nil
}

// bars draws the bars of days, one unit of cost so high.
func bars(days []core.DayTotals, unit float64) []bar {
	step := float64(chartWidth) / float64(len(days))
	gap := 0.0 // where bars are thin, what lies between them would flicker
	if step > 4 {
		gap = min(step*0.25, 4)
	}
	height := func(n int64) float64 {
		if n == 0 {
			return 0
		}
		return max(1, float64(n)*unit) // something can be seen
	}
	list := make([]bar, len(days))
	for i, d := range days {
		allow, deny := height(d.Allowed), height(d.Denied)
		list[i] = bar{DayTotals: d, X: float64(i)*step + gap/2, W: step - gap,
			AllowedY: chartHeight - allow, Allow: allow, DeniedY: chartHeight - allow - deny, Deny: deny,
			Title: d.Date.Start().Format("Mon 2 Jan 2006") + ": " + humanize.Comma(d.Allowed) + " allowed, " + humanize.Comma(d.Denied) + " denied"}
	}
	return list
}

// roundUp returns the next number that is short, as its half is: 2, 4, 6, 8, 10, 12, 16, 20,
// 24, 30, 40, 50, 60, 80, 100, 120 and so on.
func roundUp(n int64) int64 {
	for unit := int64(1); unit <= 1e16; unit *= 10 {
		for _, m := range []int64{2, 4, 6, 8, 10, 12, 16, 20, 24, 30, 40, 50, 60, 80, 100} {
			if n <= m*unit {
				return m * unit
			}
		}
	}
	return n
}

// short writes a number in few characters: 1.5k, 20M.
func short(n int64) string {
	return strings.ReplaceAll(humanize.SIWithDigits(float64(n), 2, ""), " ", "")
}
