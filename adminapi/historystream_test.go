package adminapi_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/limitkeeper/limitkeeper/adminapi"
	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/memstore"
)

// CSV and NDJSON have the same entries as the pages, with each member in a column. A text that a spreadsheet would run has a ' in front.
func TestRequestsStream(t *testing.T) {
	a := newAPI(t)
	user, key := a.anyHistory()
	pages := a.do("GET", prefix+"/requests", nil).want(200)
	if got := pages.header.Get("Vary"); got != "Accept" {
		t.Errorf("got Vary: %q, want Accept", got)
	}
	want := pages.data()["requests"].([]any)

	r := a.do("GET", prefix+"/requests", nil, with("Accept", "application/x-ndjson")).want(200)
	var lines []any
	for d := json.NewDecoder(strings.NewReader(string(r.body))); d.More(); {
		d.UseNumber()
		var v any
		if err := d.Decode(&v); err != nil {
			t.Fatal(err)
		}
		lines = append(lines, v)
	}
	if !reflect.DeepEqual(lines, want) || strings.Count(string(r.body), "\n") != len(want) {
		t.Errorf("NDJSON: got %v, want %v", lines, want)
	}

	r = a.do("GET", prefix+"/requests", nil, with("Accept", "Text/CSV; header=present, application/json;q=0.5")).want(200)
	rows, err := csv.NewReader(strings.NewReader(string(r.body))).ReadAll()
	if err != nil || len(rows) != len(want)+1 {
		t.Fatalf("CSV: got %d rows, %v, want %d\n%s", len(rows), err, len(want)+1, r.body)
	}
	columns := map[string]string{"meter": "adjusted_meter"}
	for i, entry := range want {
		e := entry.(map[string]any)
		get := func(column string) string { return rows[i+1][slices.Index(rows[0], column)] }
		for name, value := range e {
			if column, renamed := columns[name]; renamed {
				name = column
			}
			if limit, ok := value.(map[string]any); ok && name == "limit" {
				for member, want := range limit {
					if got := get("limit_" + member); got != fmt.Sprint(want) {
						t.Errorf("row %d: got limit_%s %q, want %v", i, member, got, want)
					}
				}
				continue
			}
			text := fmt.Sprint(value)
			if costs, ok := value.(map[string]any); ok { // JSON, whose members are sorted as json.Marshal sorts them
				b, _ := json.Marshal(costs)
				text = string(b)
			}
			if _, isNumber := value.(json.Number); !isNumber && text != "" && strings.Contains("=+-@", text[:1]) {
				text = "'" + text
			}
			if got := get(name); got != text {
				t.Errorf("row %d: got %s %q, want %q", i, name, got, text)
			}
		}
		if costs := get("costs"); (e["kind"] == "adjust") != (costs == "") {
			t.Errorf("row %d: got the costs %q", i, costs)
		}
	}

	b := a.as(a.account("other"))
	for _, query := range []string{"endpoint=/none", "user_id=99", "user_id=" + user, "key_id=" + key, ""} { // none is of the account b
		r := b.do("GET", prefix+"/requests?"+query, nil, with("Accept", "text/csv")).want(200)
		if string(r.body) != strings.Join(rows[0], ",")+"\n" {
			t.Errorf("%s: CSV of nothing: got %q, want the names of the columns", query, r.body)
		}
	}
	for _, parameter := range []string{"page=1", "limit=10", "cursor=x", "decision=denied", "meter=Tokens"} {
		name, _, _ := strings.Cut(parameter, "=")
		a.bad("GET", prefix+"/requests?"+parameter, nil, with("Accept", "text/csv")).wantField(core.CodeValidation, name)
	}
	a.do("GET", prefix+"/requests", nil, with("Accept", "application/json, text/csv")).want(200).data()
}

// A text that a spreadsheet would run as a formula has a ' in front in CSV, and not in NDJSON.
func TestRequestsFormulas(t *testing.T) {
	a := newAPI(t)
	_, _, secret := a.limitedKey(`"max_requests":null`)
	want := ""
	for _, start := range "=+-@＝＋－＠'{1" {
		id := string(start) + "cmd|' /C calc'!A0"
		a.validateWith(secret, fmt.Sprintf(`,"request_id":%q`, id))
		if strings.ContainsRune("=+-@＝＋－＠", start) {
			id = "'" + id
		}
		want = id + "\n" + want
	}
	rows, err := csv.NewReader(bytes.NewReader(a.do("GET", prefix+"/requests", nil, with("Accept", "text/csv")).want(200).body)).ReadAll()
	got, column := "", slices.Index(rows[0], "request_id")
	for _, row := range rows[1:] {
		got += row[column] + "\n"
	}
	if err != nil || got != want {
		t.Errorf("got %q, %v, want %q", got, err, want)
	}
	if body := a.do("GET", prefix+"/requests", nil, with("Accept", "application/x-ndjson")).want(200).body; bytes.Contains(body, []byte(`"'=`)) {
		t.Errorf("NDJSON: got %s", body)
	}
}

// longHistory is a store in which each user has n entries. Each read takes as much memory as the page has entries. A fault fails each read
// behind the first half of the entries.
type longHistory struct {
	core.Store
	n     int
	fault error
}

func (s *longHistory) History(_ context.Context, of core.CounterID, _ time.Time, p core.Page) ([]core.Entry, int, error) {
	if s.fault != nil && p.Offset() >= s.n/2 {
		return nil, 0, s.fault
	}
	list := make([]core.Entry, min(p.Size, max(0, s.n-p.Offset())))
	for i := range list {
		list[i] = core.Entry{At: began.Add(-time.Duration(p.Offset()+i) * time.Millisecond), UserID: of.UserID, Endpoint: "/v1/reports", Method: "GET", IP: "192.0.2.1", Cost: 1}
	}
	return list, s.n, nil
}

// open sends a request whose answer is read by the test.
func (a *api) open(path, accept string) *http.Response {
	a.t.Helper()
	resp, err := a.server.Client().Do(a.newRequest("GET", prefix+path, nil, with("Accept", accept)))
	if err != nil {
		a.t.Fatal(err)
	}
	a.t.Cleanup(func() { _ = resp.Body.Close() })
	return resp
}

// A failure in the middle of a stream closes the connection, so that the client does not take the answer for a whole one. A failure before the
// first entry is answered as usual. The log has the cause of both.
func TestRequestsStreamFails(t *testing.T) {
	store, log := &longHistory{Store: memstore.New(), n: 20_000, fault: errors.New("disk on fire")}, &logged{}
	a := newAPIOver(t, store, func(c *adminapi.Config) { c.Logger = slog.New(slog.NewTextHandler(log, nil)) })
	a.user("u")
	for _, accept := range []string{"text/csv", "application/x-ndjson"} {
		resp := a.open("/requests", accept)
		body, err := io.ReadAll(resp.Body)
		lines := bytes.Count(body, []byte("\n"))
		if resp.StatusCode != 200 || err == nil || lines < store.n/4 || lines > store.n/2+1 {
			t.Errorf("%s: got %d, %d lines and the error %v, want an answer that ends with an error", accept, resp.StatusCode, lines, err)
		}
		if text := log.String(); !strings.Contains(text, "disk on fire") || !strings.Contains(text, resp.Header.Get("X-Request-Id")) || strings.Contains(string(body), "disk on fire") {
			t.Errorf("%s: got the log %s", accept, text)
		}
	}
	store.n = 0 // each read fails
	holdFault(t, a.do("GET", prefix+"/requests", nil, with("Accept", "text/csv")).wantCode(500, core.CodeInternal), log, "disk on fire")
	if r := a.bad("HEAD", prefix+"/requests", nil, with("Accept", "text/csv")).want(200); r.header.Get("Content-Type") != "text/csv" || len(r.body) > 0 {
		t.Errorf("HEAD: got the type %s and %d bytes", r.header.Get("Content-Type"), len(r.body))
	}
}

// A stream of any length takes the same memory: entries go to the client as they are read.
func TestRequestsStreamMemory(t *testing.T) {
	store := &longHistory{Store: memstore.New(), n: 200_000} // 45 MB as entries
	a := newAPIOver(t, store)
	a.user("u")
	live := func() int64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	for _, accept := range []string{"text/csv", "application/x-ndjson"} {
		before, lines := live(), 0
		for lr := bufio.NewScanner(a.open("/requests?user_id=1", accept).Body); lr.Scan(); lines++ {
			if lines%50_000 != 25_000 {
				continue
			}
			if more := live() - before; more > 24<<20 {
				t.Errorf("%s: after %d lines: got %d bytes of memory, want at most 24 MiB", accept, lines, more)
			}
		}
		if lines < store.n {
			t.Errorf("%s: got %d lines, want %d entries", accept, lines, store.n)
		}
	}
}

// An account has at most four streams open at once, and another account has its own. A client that disconnects makes room.
func TestRequestsStreamsAtOnce(t *testing.T) {
	a := newAPIOver(t, &longHistory{Store: memstore.New(), n: 200_000})
	b := a.as(a.account("other"))
	a.user("u")
	var first *http.Response
	for range 4 {
		if first = a.open("/requests", "text/csv"); first.StatusCode != 200 {
			t.Fatalf("got %d, want 200", first.StatusCode)
		}
	}
	a.do("GET", prefix+"/requests", nil, with("Accept", "text/csv")).wantCode(429, core.CodeRateLimitExceeded)
	b.do("GET", prefix+"/requests", nil, with("Accept", "text/csv")).want(200)
	_ = first.Body.Close()
	for within := time.Now().Add(time.Minute); a.open("/requests?user_id=99", "text/csv").StatusCode != 200; {
		if time.Now().After(within) {
			t.Fatal("the client of a stream has disconnected, and its place is not free")
		}
	}
}
