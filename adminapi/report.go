package adminapi

import (
	"context"
	"encoding/csv"
	"fmt"
	"io"
	"net/url"
	"strconv"
	"strings"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/service"
)

// groupWords are the words that group_by may have.
var groupWords = []string{"user", "key", "plan", "meter", "day", "month"}

// ParseReport returns the query of the report that the parameters from, to and group_by describe. from is the start of the present month by default. to
// is the end of the month of from by default.
func ParseReport(values url.Values, today core.Date) (service.ReportQuery, error) {
	q := &query{values: values}
	r := q.reportQuery(today)
	return r, q.err
}

func (q *query) reportQuery(today core.Date) (r service.ReportQuery) {
	r.First = q.date("from", today.FirstOfMonth(0))
	end := q.date("to", r.First.FirstOfMonth(1)) // the day after the last one
	r.Last = end - 1
	switch {
	case end <= r.First:
		q.wrong("to", "Must be after from: to is the day after the last one")
	case end-r.First > core.DaysKept:
		q.wrong("from", fmt.Sprintf("Must be at most %d days before to", core.DaysKept))
	}
	text := q.text("group_by")
	if text == "" {
		text = "user,meter"
	}
	members := map[string]*bool{"user": &r.User, "key": &r.Key, "plan": &r.Plan, "meter": &r.Meter, "day": &r.Day, "month": &r.Month}
	for word := range strings.SplitSeq(text, ",") {
		switch chosen := members[word]; {
		case chosen == nil:
			q.wrong("group_by", "Must be one or more of "+strings.Join(groupWords, ", ")+", separated by commas")
			return r
		case *chosen:
			q.wrong("group_by", "Must not name "+word+" twice")
		default:
			*chosen = true
		}
	}
	if r.Day && r.Month {
		q.wrong("group_by", "Must not name both day and month")
	}
	return r
}

// reportColumns returns the columns of a report in CSV: the names of the members of a row.
func reportColumns(q *service.ReportQuery) []string {
	row := viewReportRow(q, &service.ReportRow{})
	names := make([]string, len(row))
	for i, f := range row {
		names[i] = f.name
	}
	return names
}

// viewReportRow returns the JSON form of a row. The numbers of requests are null if the meter is not requests.
func viewReportRow(q *service.ReportQuery, r *service.ReportRow) (o object) {
	add := func(name string, v any) { o = append(o, field{name, v}) }
	if q.User || q.Key {
		u := core.OrZero(r.User)
		add("user_id", orNull(u.ID))
		add("external_id", orNull(u.ExternalID))
		add("user_name", orNull(u.Name))
	}
	if q.Key {
		k := core.OrZero(r.Key)
		add("key_id", orNull(k.ID))
		add("key_name", orNull(k.Name))
	}
	if q.Plan {
		pl := core.OrZero(r.Plan)
		add("plan_id", orNull(pl.ID))
		add("plan_name", orNull(pl.Name))
	}
	switch {
	case q.Day:
		add("day", r.Date)
	case q.Month:
		add("month", r.Date.String()[:len("2026-10")])
	}
	if q.Meter {
		add("meter", r.Meter)
	}
	add("allowed", r.Allowed)
	add("denied", r.Denied)
	add("adjusted", r.Adjusted)
	add("used", r.Used())
	add("overage", r.Overage)
	var allowed, denied *int64
	if r.Meter == core.MeterRequests {
		allowed, denied = &r.Requests.Allowed, &r.Requests.Denied
	}
	add("requests_allowed", allowed)
	add("requests_denied", denied)
	return o
}

// reportCells returns the cells of a row of CSV.
func reportCells(row object) []string {
	cells := make([]string, len(row))
	for i, f := range row {
		switch v := f.value.(type) {
		case string:
			cells[i] = cell(v)
		case *string:
			cells[i] = cell(core.OrZero(v))
		case int64:
			cells[i] = strconv.FormatInt(v, 10)
		case *int64:
			if v != nil {
				cells[i] = strconv.FormatInt(*v, 10)
			}
		case core.Date:
			cells[i] = v.String()
		}
	}
	return cells
}

// usageReport answers with a report of the usage of the account, as CSV, NDJSON or JSON.
func usageReport(c *call) error {
	q := c.query()
	r := q.reportQuery(c.svc.Today())
	if q.err != nil {
		return q.err
	}
	return c.stream(c.streamType(), reportColumns(&r), func(s *stream) error {
		return c.svc.StreamReport(c.ctx(), c.account, r, func(rows []service.ReportRow) error {
			return s.rows(func() error {
				for i := range rows {
					o := viewReportRow(&r, &rows[i])
					if err := s.row(o, func() []string { return reportCells(o) }); err != nil {
						return err
					}
				}
				return nil
			})
		})
	})
}

// WriteReport writes a report as CSV or NDJSON. It writes nothing if the report fails before its first rows.
func WriteReport(ctx context.Context, s *service.Service, account string, q service.ReportQuery, asCSV bool, w io.Writer) error {
	table, line := csv.NewWriter(w), []byte{}
	if asCSV {
		if err := table.Write(reportColumns(&q)); err != nil {
			return err
		}
	}
	err := s.StreamReport(ctx, account, q, func(rows []service.ReportRow) (err error) {
		for i := range rows {
			o := viewReportRow(&q, &rows[i])
			if asCSV {
				err = table.Write(reportCells(o))
			} else if line, err = o.append(line[:0]); err == nil {
				_, err = w.Write(append(line, '\n'))
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	table.Flush()
	return table.Error()
}
