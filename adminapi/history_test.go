package adminapi_test

import (
	"encoding/csv"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
)

// Ten minutes after a limit of a minute has refused a request, the histories still say which limit it was, 60 of 60, and whose.
func TestRefusingLimit(t *testing.T) {
	a := newAPI(t)
	user, key, secret := a.limitedKey(`"max_requests":1000,"request_period":"month","limits":[{"meter":"requests","max":60,"period":"minute"}]`)
	a.clock.advance(time.Minute - time.Duration(a.clock.Now().Second())*time.Second)
	for range 60 {
		a.validateWith(secret, "")
	}
	refused := a.clock.Now()
	a.validateWith(secret, `,"request_id":"order 4711"`)
	a.clock.advance(10 * time.Minute)
	a.validateWith(secret, `,"request_id":"order 4712"`)

	want := map[string]any{"of": "plan", "meter": "requests", "period": "minute", "max": json.Number("60"), "used": json.Number("60")}
	for _, path := range []string{"/keys/" + key + "/requests", "/users/" + user + "/requests", "/requests"} {
		list := a.do("GET", prefix+path+"?limit=2", nil).want(200).data()["requests"].([]any)
		later, e := list[0].(map[string]any), list[1].(map[string]any)
		if !reflect.DeepEqual(e["limit"], want) || e["reason"] != "quota" || e["request_id"] != "order 4711" {
			t.Errorf("%s: got %v, want order 4711 refused by 60 of 60 requests a minute of the plan", path, e)
		}
		if _, refused := later["limit"]; refused || later["request_id"] != "order 4712" {
			t.Errorf("%s: got %v, want order 4712 without a limit", path, later)
		}
	}
	lasts := []string{a.clock.Now().Format("2006-01-02T15:04:05.999Z07:00"), refused.Truncate(time.Second).Format(time.RFC3339)}
	for _, path := range []string{"/keys/" + key, "/keys/" + key + "/usage"} {
		d := a.do("GET", prefix+path, nil).want(200).data()
		if got := []string{fmt.Sprint(d["last_used_at"]), fmt.Sprint(d["last_refused_at"])}; !slices.Equal(got, lasts) {
			t.Errorf("%s: got the last requests %q, want %q", path, got, lasts)
		}
	}
}

// The other refusals have no limit, and a refusal of a disabled key has its request id.
func TestRefusedWithoutLimit(t *testing.T) {
	a := newAPI(t)
	_, key, secret := a.limitedKey(`"max_requests":1000,"request_period":"month","rate":{"requests":1,"per":"minute"}`)
	a.validateWith(secret, `,"request_id":"same"`)
	a.validateWith(secret, `,"request_id":"over the rate"`)
	a.do("PUT", prefix+"/keys/"+key, `{"status":"inactive"}`).want(200)
	a.validateWith(secret, `,"request_id":"same"`)
	got := ""
	for _, r := range a.do("GET", prefix+"/requests", nil).want(200).data()["requests"].([]any) {
		e := r.(map[string]any)
		got += fmt.Sprintf("%v %v %v, ", e["request_id"], e["reason"], e["limit"])
	}
	if want := "same disabled <nil>, over the rate rate <nil>, same <nil> <nil>, "; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// anyHistory makes requests and entries of each kind, and returns the id of the key.
func (a *api) anyHistory() (user, key string) {
	a.t.Helper()
	user, key, secret := a.limitedKey(`"max_requests":4,"request_period":"day","limits":[{"meter":"tokens","max":100,"period":"month"}]`)
	call := func(path, method, members string) *result {
		return a.do("POST", prefix+"/validate", fmt.Sprintf(`{"api_key":%q,"endpoint":%q,"method":%q%s}`, secret, path, method, members)).want(200)
	}
	call("/v1/a", "GET", `,"ip_address":"192.0.2.9","request_id":"=1+1"`)
	call("/v1/b", "POST", `,"costs":{"tokens":60}`)
	call("/v2/a", "POST", `,"costs":{"tokens":60},"request_id":"id, \"quoted\""`) // refused by the tokens
	hold := call("/v2/b", "GET", `,"hold_seconds":60`).at()["hold_id"].(string)
	a.do("POST", prefix+"/holds/"+hold+"/settle", `{"costs":{"tokens":7}}`).want(200)
	a.do("POST", prefix+"/keys/"+key+"/usage/adjust", `{"delta":1,"reason":"-goodwill","request_id":"ticket"}`).want(200)
	call("/v2/c", "GET", "") // refused by the requests
	call("/v2/c", "GET", "")
	a.do("POST", prefix+"/users/"+user+"/usage/adjust", `{"meter":"tokens","set":5,"period":"month","reason":"import"}`).want(200)
	return user, key
}

// Each filter of the history selects the entries that it names, and all filters together those that match each.
func TestRequestsFilters(t *testing.T) {
	a := newAPI(t)
	user, key := a.anyHistory()
	list := func(query string) (got []string) {
		for _, r := range a.do("GET", prefix+"/requests?"+query, nil).want(200).data()["requests"].([]any) {
			e := r.(map[string]any)
			name := fmt.Sprint(e["endpoint"])
			if kind := e["kind"]; kind != nil {
				name = fmt.Sprint(kind)
			}
			got = append(got, name)
		}
		return got
	}
	for _, tt := range []struct{ query, want string }{
		{"", "[adjust /v2/c /v2/c adjust settle /v2/b /v2/a /v1/b /v1/a]"},
		{"meter=tokens", "[adjust settle /v2/a /v1/b]"}, // without /v2/c, which a limit of requests refused
		{"meter=requests", "[/v2/c /v2/c adjust settle /v2/b /v1/b /v1/a]"},
		{"meter=spend", "[]"},
		{"meter=tokens&reason=quota", "[/v2/a]"},
		{"method=POST", "[/v2/a /v1/b]"},
		{"method=post", "[]"},
		{"ip_address=192.0.2.9", "[/v1/a]"},
		{"request_id=ticket", "[adjust]"},
		{"request_id=id%2C+%22quoted%22", "[/v2/a]"},
		{"request_id=tick", "[]"},
		{"endpoint=/v2/&method=GET&status=denied&key_id=" + key + "&user_id=" + user, "[/v2/c /v2/c]"},
	} {
		if got := fmt.Sprint(list(tt.query)); got != tt.want {
			t.Errorf("%s: got %s, want %s", tt.query, got, tt.want)
		}
	}
	a.bad("GET", prefix+"/requests?meter=Tokens", nil).wantField(core.CodeValidation, "meter")
}

// CSV and NDJSON have the same entries as the pages, with each member in a column. A text that a spreadsheet would run has a ' in front.
func TestRequestsStream(t *testing.T) {
	a := newAPI(t)
	a.anyHistory()
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

	if r := a.do("GET", prefix+"/requests?endpoint=/none", nil, with("Accept", "text/csv")).want(200); strings.Count(string(r.body), "\n") != 1 {
		t.Errorf("CSV of nothing: got %q, want the names of the columns", r.body)
	}
	for _, parameter := range []string{"page=1", "limit=10", "cursor=x"} {
		name, _, _ := strings.Cut(parameter, "=")
		a.bad("GET", prefix+"/requests?"+parameter, nil, with("Accept", "text/csv")).wantField(core.CodeValidation, name)
	}
	a.do("GET", prefix+"/requests", nil, with("Accept", "application/json, text/csv")).want(200).data()
}
