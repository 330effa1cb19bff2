package adminapi_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"runtime"
	"strings"
	"testing"

	"github.com/limitkeeper/limitkeeper/adminapi"
	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/memstore"
)

// manyUsers is a store with n users. Each user has used three meters on each day. With a fault, each read after the first half of the users fails.
type manyUsers struct {
	core.Store
	n     int
	fault error
}

func (s *manyUsers) Users(_ context.Context, account string, _ core.UserFilter, p core.Page) (list []*core.User, total int, err error) {
	if s.fault != nil && p.Offset() >= s.n/2 {
		return nil, 0, s.fault
	}
	for i := p.Offset(); i < min(s.n, p.Offset()+p.Size); i++ {
		list = append(list, &core.User{AccountID: account, ID: int64(i + 1), Name: fmt.Sprint("user ", i+1)})
	}
	return list, s.n, nil
}

func (s *manyUsers) DaysOf(_ context.Context, ids []core.CounterID, first, last core.Date) ([][]core.CounterDay, error) {
	lists := make([][]core.CounterDay, len(ids))
	for i, id := range ids {
		for d := first; d <= last && id.UserID > 0; d++ {
			lists[i] = append(lists[i], core.CounterDay{Date: d, Traffic: core.Traffic{Allowed: 2}, Meters: []core.MeterDay{
				{Meter: "spend", MeterTraffic: core.MeterTraffic{Allowed: 3}}, {Meter: "tokens", MeterTraffic: core.MeterTraffic{Allowed: 5}}}})
		}
	}
	return lists, nil
}

// The three forms of a report have the same rows.
func TestReportForms(t *testing.T) {
	a := newAPIOver(t, &manyUsers{Store: memstore.New(), n: 2_500})
	path := prefix + "/usage?from=2026-02-01"
	list := a.do("GET", path, nil).want(200).at()
	rows := list["data"].([]any)
	if len(rows) != 7_500 || fmt.Sprint(list["count"]) != "7500" {
		t.Fatalf("got %d rows and the count %v, want 7500", len(rows), list["count"])
	}
	lines := strings.Split(string(a.do("GET", path, nil, with("Accept", "application/x-ndjson")).want(200).body), "\n")
	table := strings.Split(string(a.do("GET", path, nil, with("Accept", "text/csv")).want(200).body), "\n")
	if len(lines) != len(rows)+1 || len(table) != len(rows)+2 {
		t.Fatalf("got %d lines of NDJSON and %d of CSV, want as many as rows", len(lines), len(table))
	}
	for i, row := range rows {
		r := row.(map[string]any)
		var line map[string]any
		if err := json.Unmarshal([]byte(lines[i]), &line); err != nil || fmt.Sprint(line) != fmt.Sprint(r) {
			t.Fatalf("row %d: NDJSON has %v, %v, want %v", i, line, err, r)
		}
		numbers := fmt.Sprint(r["allowed"], ",0,0,", r["used"], ",0,,")
		if r["meter"] == core.MeterRequests {
			numbers = fmt.Sprint(r["allowed"], ",0,0,", r["used"], ",0,", r["requests_allowed"], ",0")
		}
		if want := fmt.Sprintf("%v,,%v,%v,%s", r["user_id"], r["user_name"], r["meter"], numbers); table[i+1] != want {
			t.Fatalf("row %d: CSV has %s, want %s", i, table[i+1], want)
		}
	}
}

// A failure in the middle of a report closes the connection, in each form. A failure before the first row is answered as usual.
func TestReportFails(t *testing.T) {
	store, log := &manyUsers{Store: memstore.New(), n: 20_000, fault: errors.New("disk on fire")}, &logged{}
	a := newAPIOver(t, store, func(c *adminapi.Config) { c.Logger = slog.New(slog.NewTextHandler(log, nil)) })
	for _, accept := range []string{"text/csv", "application/x-ndjson", "application/json"} {
		resp := a.open("/usage", accept)
		body, err := io.ReadAll(resp.Body)
		if rows := bytes.Count(body, []byte("user ")); resp.StatusCode != 200 || err == nil || rows < store.n || rows > 3*store.n/2 {
			t.Errorf("%s: got %d, %d rows and the error %v, want an answer that ends with an error", accept, resp.StatusCode, rows, err)
		}
		if text := log.String(); !strings.Contains(text, "disk on fire") || !strings.Contains(text, resp.Header.Get("X-Request-Id")) || strings.Contains(string(body), "disk on fire") {
			t.Errorf("%s: got the log %s", accept, text)
		}
	}
	store.n = 0 // each read fails
	holdFault(t, a.do("GET", prefix+"/usage", nil).wantCode(500, core.CodeInternal), log, "disk on fire")
}

// A report takes the same memory for any number of users.
func TestReportMemory(t *testing.T) {
	store := &manyUsers{Store: memstore.New(), n: 20_000} // 600,000 days of users
	a := newAPIOver(t, store)
	live := func() int64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	for _, accept := range []string{"text/csv", "application/x-ndjson"} {
		before, lines := live(), 0
		for lr := bufio.NewScanner(a.open("/usage", accept).Body); lr.Scan(); lines++ {
			if lines%20_000 == 10_000 {
				if more := live() - before; more > 24<<20 {
					t.Errorf("%s: after %d lines: got %d bytes of memory, want at most 24 MiB", accept, lines, more)
				}
			}
		}
		if lines < 3*store.n {
			t.Errorf("%s: got %d lines, want %d rows", accept, lines, 3*store.n)
		}
	}
}

// shrinking is a store in which the first users are deleted while the list is read.
type shrinking struct {
	manyUsers
	reads, deleted int
}

func (s *shrinking) Users(ctx context.Context, account string, f core.UserFilter, p core.Page) ([]*core.User, int, error) {
	if s.reads++; s.reads%2 == 0 && s.deleted < 100 {
		s.deleted += 7
	}
	all, _, err := s.manyUsers.Users(ctx, account, f, core.Page{Number: 1, Size: s.n})
	all = all[s.deleted:]
	return all[min(len(all), p.Offset()):min(len(all), p.Offset()+p.Size)], len(all), err
}

// A report has each user once, although other users are deleted during the report.
func TestReportWhileUsersAreDeleted(t *testing.T) {
	a := newAPIOver(t, &shrinking{manyUsers: manyUsers{Store: memstore.New(), n: 5_500}})
	body := string(a.do("GET", prefix+"/usage?group_by=user", nil, with("Accept", "text/csv")).want(200).body)
	ids := map[string]int{}
	for _, line := range strings.Split(body, "\n")[1:] {
		id, _, _ := strings.Cut(line, ",")
		ids[id]++
	}
	for id := 200; id <= 5_500; id++ {
		if n := ids[fmt.Sprint(id)]; n != 1 {
			t.Fatalf("user %d: got %d rows, want 1", id, n)
		}
	}
}

// An invalid parameter is refused by name.
func TestReportRefusals(t *testing.T) {
	a := newAPI(t)
	a.do("GET", prefix+"/usage?group_by=plan,day,meter", nil).want(200)
	for _, query := range []string{"group_by=", "group_by=user,", "group_by=,", "group_by=User", "to=2026-03-01", "from=2026-3-1", "month=2026-03", "page=1"} {
		name, _, _ := strings.Cut(query, "=")
		a.bad("GET", prefix+"/usage?"+query, nil).wantField(core.CodeValidation, name)
	}
}
