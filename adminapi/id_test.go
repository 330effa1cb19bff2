package adminapi_test

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/memstore"
)

// A path that is not canonical gets 404 and never a redirect, because a client would send its key along.
func TestPathTricks(t *testing.T) {
	a := newAPI(t)
	plan := a.plan(5)
	a.user("One")
	a.user("Two")
	key, _ := a.key("1", plan)
	for path, code := range map[string]core.Code{
		"/users/1/../2":                 core.CodeNotFound,
		"/users/./1":                    core.CodeNotFound,
		"/users//1":                     core.CodeNotFound,
		"//users/1":                     core.CodeNotFound,
		"/users/1/":                     core.CodeNotFound,
		"/users/":                       core.CodeNotFound,
		"/users/1/%2e%2e/2":             core.CodeNotFound,
		"/users/..":                     core.CodeNotFound,
		"/Users/1":                      core.CodeNotFound,
		"/users/1/usage/x":              core.CodeNotFound,
		"":                              core.CodeNotFound,
		"/":                             core.CodeNotFound,
		"/users%2F1":                    core.CodeNotFound,
		"/users/%2e%2e":                 core.CodeUserNotFound,
		"/users/%2e":                    core.CodeUserNotFound,
		"/users/1%2F..%2F2":             core.CodeUserNotFound,
		"/users/01":                     core.CodeUserNotFound,
		"/users/+1":                     core.CodeUserNotFound,
		"/users/%2B1":                   core.CodeUserNotFound,
		"/users/-1":                     core.CodeUserNotFound,
		"/users/0":                      core.CodeUserNotFound,
		"/users/1.0":                    core.CodeUserNotFound,
		"/users/1e0":                    core.CodeUserNotFound,
		"/users/0x1":                    core.CodeUserNotFound,
		"/users/%201":                   core.CodeUserNotFound,
		"/users/1%00":                   core.CodeUserNotFound,
		"/users/%D9%A1":                 core.CodeUserNotFound,
		"/users/4294967297":             core.CodeUserNotFound,
		"/users/18446744073709551617":   core.CodeUserNotFound,
		"/users/" + fill("9", 9000):     core.CodeUserNotFound,
		"/keys/" + key + "%00":          core.CodeAPIKeyNotFound,
		"/keys/" + key + "%2Fusage":     core.CodeAPIKeyNotFound,
		"/keys/" + strings.ToUpper(key): core.CodeAPIKeyNotFound,
		"/keys/" + fill("a", 9000):      core.CodeAPIKeyNotFound,
		"/keys/%ff":                     core.CodeAPIKeyNotFound,
		"/keys/..%2f":                   core.CodeAPIKeyNotFound,
		"/plans/" + plan + "%20":        core.CodePlanNotFound,
		"/plans/%F0%9F%98%80":           core.CodePlanNotFound,
		"/plans/" + key:                 core.CodePlanNotFound,
	} {
		a.in(t).bad("GET", prefix+path, nil).wantCode(http.StatusNotFound, code)
	}
	for _, path := range []string{"/", "/functions", "/functions/v1", "/functions/v1/", "/functions/v2/users", "/functions/v1/../v1/users", "/index.html"} {
		a.in(t).bad("GET", path, nil).wantCode(http.StatusNotFound, core.CodeNotFound)
	}
}

// spy is a store that records the requested ids.
type spy struct {
	core.Store
	asked []string
}

func (s *spy) Key(ctx context.Context, account, id string) (*core.Key, error) {
	s.asked = append(s.asked, id)
	return s.Store.Key(ctx, account, id)
}

func (s *spy) Plan(ctx context.Context, account, id string) (*core.Plan, error) {
	s.asked = append(s.asked, id)
	return s.Store.Plan(ctx, account, id)
}

func (s *spy) Update(ctx context.Context, account string, fn func(core.Tx) error) error {
	return s.Store.Update(ctx, account, func(tx core.Tx) error { return fn(spyTx{tx, s}) })
}

type spyTx struct {
	core.Tx
	spy *spy
}

func (tx spyTx) Plan(id string) (*core.Plan, error) {
	tx.spy.asked = append(tx.spy.asked, id)
	return tx.Tx.Plan(id)
}

// A string without the form of an id never reaches a store, which may build record names from ids.
func TestOnlyIDsReachStore(t *testing.T) {
	store := &spy{Store: memstore.New()}
	a := newAPIOver(t, store)
	plan, user := a.plan(5), a.user("Example Customer")
	for _, id := range []string{"a%2Fb", "%00", "%ff", "..%2f", fill("a", 65)} {
		a.bad("GET", prefix+"/keys/"+id, nil).want(404)
		a.bad("GET", prefix+"/plans/"+id+"/usage", nil).want(404)
	}
	for _, id := range []string{"", "a/b", "\x00", "ä", fill("a", 65)} {
		body := object{"name": "a", "user_id": json.Number(user), "plan_id": id}
		a.do("POST", prefix+"/keys", body).wantCode(404, core.CodePlanNotFound)
		a.do("PUT", prefix+"/users/"+user, object{"plan_id": id}).wantCode(404, core.CodePlanNotFound)
	}
	a.key(user, plan)
	a.do("GET", prefix+"/plans/plan_"+fill("a", 59), nil).want(404)
	if want := []string{plan, "plan_" + fill("a", 59)}; !slices.Equal(store.asked, want) {
		t.Errorf("asked for %q, want %q", store.asked, want)
	}
}

// An encoded letter is that letter: such a path is the same path.
func TestEncodedPath(t *testing.T) {
	a := newAPI(t)
	a.user("One")
	a.do("GET", prefix+"/%75sers/%31", nil).want(200)
}

// An unsupported method gets 405 with Allow. HEAD is supported like GET.
func TestMethods(t *testing.T) {
	a := newAPI(t)
	for op := range operations(t) {
		_, path := splitOp(op)
		_, item, _ := a.contract.path(&url.URL{Path: path})
		want := []string{}
		for m := range item.Operations() {
			want = append(want, m)
		}
		if slices.Contains(want, "GET") {
			want = append(want, "HEAD")
		}
		slices.Sort(want)
		for _, method := range []string{"GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "PROPFIND", "get"} {
			if slices.Contains(want, method) {
				continue
			}
			r := a.in(t).bad(method, path, nil).wantCode(405, core.CodeMethodNotAllowed)
			if got := r.header.Get("Allow"); got != strings.Join(want, ", ") {
				t.Errorf("%s %s: Allow: got %q, want %v", method, path, got, want)
			}
		}
	}
}

// HEAD answers as GET does, without the body.
func TestHead(t *testing.T) {
	a := newAPI(t)
	a.user("One")
	for path, status := range map[string]int{"/users": 200, "/users/1": 200, "/users/2": 404, "/nothing": 404, "/health": 200, "/validate": 405} {
		head, get := a.bad("HEAD", prefix+path, nil).want(status), a.bad("GET", prefix+path, nil).want(status)
		if len(head.body) != 0 || head.header.Get("Content-Length") != get.header.Get("Content-Length") {
			t.Errorf("%s: got %d bytes and Content-Length %s, want none and %s", path,
				len(head.body), head.header.Get("Content-Length"), get.header.Get("Content-Length"))
		}
	}
}

// Every answer has a new request id. The client's X-Request-Id is ignored, because the id goes into the log.
func TestRequestID(t *testing.T) {
	a := newAPI(t)
	seen := map[string]bool{"chosen-by-the-client": true}
	for _, path := range []string{"/users", "/users", "/nothing", "/health", "/openapi.yaml"} {
		id := a.bad("GET", prefix+path, nil, with("X-Request-Id", "chosen-by-the-client")).header.Get("X-Request-Id")
		if id == "" || seen[id] {
			t.Errorf("%s: got the id %q, want a new one", path, id)
		}
		seen[id] = true
	}
}

// Targets without a path, such as CONNECT and OPTIONS *, are answered.
func TestTargetsWithoutPath(t *testing.T) {
	a := newAPI(t)
	for _, u := range []*url.URL{{Path: ""}, {Path: "*"}, {Host: "localhost:443"}, {Opaque: "a:b"}, {Path: "users"}} {
		r := httptest.NewRequest("OPTIONS", "/", nil)
		r.URL = u
		a.record(r).wantCode(404, core.CodeNotFound)
		r.Method = "CONNECT"
		a.record(r).wantCode(404, core.CodeNotFound)
	}
}
