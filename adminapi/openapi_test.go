package adminapi_test

import (
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/getkin/kin-openapi/openapi3"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/service"
)

// operations returns every operation of the contract by method and path.
func operations(t testing.TB) map[string]*openapi3.Operation {
	ops := map[string]*openapi3.Operation{}
	for path, item := range theContract(t).doc.Paths.Map() {
		for method, op := range item.Operations() {
			ops[method+" "+path] = op
		}
	}
	if len(ops) == 0 {
		t.Fatal("openapi.yaml has no operations")
	}
	return ops
}

// Every operation shows an example of its body and of each answer, so that a reader
// need not guess. (Loading the contract holds the examples against their schemas.)
func TestContractHasExamples(t *testing.T) {
	for name, op := range operations(t) {
		if op.Summary == "" || op.OperationID == "" || len(op.Tags) == 0 {
			t.Errorf("%s: summary, operationId or tags are missing", name)
		}
		if op.RequestBody != nil && len(op.RequestBody.Value.Content.Get("application/json").Examples) == 0 {
			t.Errorf("%s: the body has no example", name)
		}
		for status, ref := range op.Responses.Map() {
			for mediaType, content := range ref.Value.Content {
				if len(content.Examples) == 0 {
					t.Errorf("%s: %s %s has no example", name, status, mediaType)
				}
			}
		}
	}
}

// Every operation says how it fails: each status that it can answer with is there,
// with the headers that go with it.
func TestContractHasEveryStatus(t *testing.T) {
	headers := map[string]string{"401": "WWW-Authenticate", "405": "Allow", "429": "Retry-After", "503": "Retry-After"}
	for name, op := range operations(t) {
		statuses := []string{"400", "405", "500"}
		if op.Security == nil {
			statuses = append(statuses, "401", "429", "503")
		}
		if strings.Contains(name, "{id}") {
			statuses = append(statuses, "404")
		}
		for _, status := range statuses {
			if op.Responses.Value(status) == nil {
				t.Errorf("%s: no %s", name, status)
			}
		}
		for status, ref := range op.Responses.Map() {
			if _, err := strconv.Atoi(status); err != nil {
				t.Errorf("%s: %q is no status", name, status)
			}
			for _, h := range []string{"X-Request-Id", headers[status]} {
				if h != "" && (ref.Value.Headers[h] == nil || !ref.Value.Headers[h].Value.Required) {
					t.Errorf("%s: %s does not require %s", name, status, h)
				}
			}
		}
	}
}

// GET /openapi.yaml serves the contract of these tests, without a key.
func TestServesContract(t *testing.T) {
	a := newAPI(t)
	r := a.do("GET", prefix+"/openapi.yaml", nil, with("Authorization", "")).want(http.StatusOK)
	if got := r.header.Get("Content-Type"); got != "application/yaml" {
		t.Errorf("Content-Type: got %q, want application/yaml", got)
	}
	doc, err := openapi3.NewLoader().LoadFromData(r.body)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := doc.Paths.Len(), a.contract.doc.Paths.Len(); got != want {
		t.Errorf("paths: got %d, want %d", got, want)
	}
}

// The served contract states the configured service_rate_limit.
func TestContractStatesThrottle(t *testing.T) {
	a := newAPI(t)
	for _, tt := range []struct {
		tunables service.Tunables
		want     string
	}{
		{service.DefaultTunables(), "Per owner's key at most 1000 requests are served in any 60 seconds,"},
		{service.Tunables{ThrottleLimit: 25, ThrottleWindow: 1500 * time.Millisecond}, "Per owner's key at most 25 requests are served in any 1.5 seconds,"},
		{service.Tunables{}, "The requests of an owner's key have no limit."},
	} {
		a.svc.Tune(tt.tunables)
		if doc := a.do("GET", prefix+"/openapi.yaml", nil).want(http.StatusOK); !strings.Contains(string(doc.body), "- "+tt.want) {
			t.Errorf("openapi.yaml does not say %q", tt.want)
		}
	}
}

// The contract rejects wrong answers of every kind. Otherwise the tests against it would prove nothing.
func TestContractCatchesWrongAnswers(t *testing.T) {
	const (
		user    = `{"data":{"user_id":1,"name":"A","email":null,"external_id":null,"plan_id":null,"metadata":null,"custom_start":null,"is_disabled":false,"overrides":[],"created_at":"2026-03-14T09:26:53.589Z","updated_at":"2026-03-14T09:26:53Z"}}`
		keyBody = `{"data":{"id":"key_1","hint":"lk_user_…wxyz","name":"A","user_id":1,"plan_id":null,"status":"active","expires_at":null,"metadata":null,"scopes":null,"allowed_endpoints":null,"allowed_ips":null,"limits":[],"rate":null,"concurrency":null,"last_used_at":null,"last_refused_at":null,"created_at":"2026-03-14T09:26:53Z","updated_at":"2026-03-14T09:26:53Z"}}`
		allowed = `{"success":true,"details":{"current_usage":1,"limit":5,"remaining":4,"reset_time":"2026-04-01T00:00:00Z","plan_name":"Basic","period_start":"2026-03-01T00:00:00Z","period_end":"2026-04-01T00:00:00Z","meter":"requests","period":"month","of":"plan"}}`
		invalid = `{"success":false,"error":"Invalid request","code":"INVALID_REQUEST","details":{"field":"endpoint","message":"Endpoint is required"}}`
	)
	good := http.Header{"X-Request-Id": {"ABCDEFGHIJKLMNOPQRST"}, "Cache-Control": {"no-store"}, "Content-Type": {"application/json"}}
	without := func(name string) func(http.Header) { return func(h http.Header) { h.Del(name) } }
	set := func(name, value string) func(http.Header) { return func(h http.Header) { h.Set(name, value) } }
	cases := []struct {
		name   string
		method string
		path   string
		status int
		body   string
		change func(http.Header)
		old    string // replaced in the body
		new    string
		ok     bool
	}{
		{name: "user", method: "GET", path: "/users/1", status: 200, body: user, ok: true},
		{name: "key", method: "GET", path: "/keys/key_1", status: 200, body: keyBody, ok: true},
		{name: "allowed", method: "POST", path: "/validate", status: 200, body: allowed, ok: true},
		{name: "invalid", method: "POST", path: "/validate", status: 400, body: invalid, ok: true},

		{name: "undocumented status", method: "GET", path: "/users/1", status: 202, body: user},
		{name: "undocumented path", method: "GET", path: "/nothing", status: 200, body: user},
		{name: "undocumented method", method: "PATCH", path: "/users/1", status: 200, body: user},
		{name: "no request id", method: "GET", path: "/users/1", status: 200, body: user, change: without("X-Request-Id")},
		{name: "cacheable", method: "GET", path: "/users/1", status: 200, body: user, change: set("Cache-Control", "public")},
		{name: "no content type", method: "GET", path: "/users/1", status: 200, body: user, change: without("Content-Type")},
		{name: "text", method: "GET", path: "/users/1", status: 200, body: user, change: set("Content-Type", "text/plain")},
		{name: "missing member", method: "GET", path: "/users/1", status: 200, body: user, old: `"email":null,`},
		{name: "unknown member", method: "GET", path: "/users/1", status: 200, body: user, old: `"name"`, new: `"digest":"x","name"`},
		{name: "wrong type", method: "GET", path: "/users/1", status: 200, body: user, old: `"user_id":1`, new: `"user_id":"1"`},
		{name: "fraction", method: "GET", path: "/users/1", status: 200, body: user, old: `"user_id":1`, new: `"user_id":1.5`},
		{name: "null", method: "GET", path: "/users/1", status: 200, body: user, old: `"name":"A"`, new: `"name":null`},
		{name: "local time", method: "GET", path: "/users/1", status: 200, body: user, old: `53Z`, new: `53+01:00`},
		{name: "nanoseconds", method: "GET", path: "/users/1", status: 200, body: user, old: `.589Z`, new: `.589001Z`},
		{name: "outside data", method: "GET", path: "/users/1", status: 200, body: user, old: `}}`, new: `},"count":1}`},
		{name: "secret of a key", method: "GET", path: "/keys/key_1", status: 200, body: keyBody,
			old: `"hint":"lk_user_…wxyz"`, new: `"api_key":"lk_user_ExampleExampleExampleExample0001"`},
		{name: "unknown member of a key", method: "GET", path: "/keys/key_1", status: 200, body: keyBody, old: `"name"`, new: `"digest":"x","name"`},
		{name: "status of a key", method: "GET", path: "/keys/key_1", status: 200, body: keyBody, old: `"active"`, new: `"deleted"`},
		{name: "allowed with an error", method: "POST", path: "/validate", status: 200, body: allowed, old: `"success":true`, new: `"success":true,"error":"Rate limit exceeded"`},
		{name: "denied without an error", method: "POST", path: "/validate", status: 200, body: allowed, old: `true`, new: `false,"reason":"quota"`},
		{name: "negative remaining", method: "POST", path: "/validate", status: 200, body: allowed, old: `"remaining":4`, new: `"remaining":-1`},
		{name: "header no number", method: "POST", path: "/validate", status: 200, body: allowed, change: set("X-RateLimit-Limit", "many")},
		{name: "header of another form", method: "POST", path: "/validate", status: 200, body: allowed, change: set("RateLimit", "month;r=1")},
		{name: "fault without a field", method: "POST", path: "/validate", status: 400, body: invalid, old: `,"details":{"field":"endpoint","message":"Endpoint is required"}`},
		{name: "another code", method: "POST", path: "/validate", status: 400, body: invalid, old: `INVALID_REQUEST`, new: `VALIDATION_ERROR`},
		{name: "no success", method: "POST", path: "/validate", status: 400, body: invalid, old: `"success":false,`},
		{name: "no challenge", method: "GET", path: "/users/1", status: 401, body: `{"error":"Authentication required","code":"UNAUTHORIZED"}`},
		{name: "field of a challenge", method: "GET", path: "/users/1", status: 401, change: set("WWW-Authenticate", `Bearer realm="limitkeeper"`),
			body: `{"error":"Authentication required","code":"UNAUTHORIZED","details":{"field":"a","message":"b"}}`},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			body := tc.body
			if tc.old != "" {
				body = strings.Replace(tc.body, tc.old, tc.new, 1)
				if body == tc.body {
					t.Fatalf("%q is not in the body", tc.old)
				}
			}
			header := good.Clone()
			if tc.change != nil {
				tc.change(header)
			}
			e := &exchange{httptest.NewRequest(tc.method, "https://localhost"+prefix+tc.path, nil), nil, tc.status, header, []byte(body)}
			if err := theContract(t).checkAnswer(e); (err == nil) != tc.ok {
				t.Errorf("%v\ngot the error %v, want one: %v", e, err, !tc.ok)
			}
		})
	}
}

// A path of the contract is matched segment by segment: an encoded slash or a dot
// segment is part of an id, or of no path at all.
func TestContractMatchesPaths(t *testing.T) {
	for target, want := range map[string]string{
		"/functions/v1/keys/key_1":     "/functions/v1/keys/{id}",
		"/functions/v1/keys/a%2Fusage": "/functions/v1/keys/{id}",
		"/functions/v1/keys/a/usage":   "/functions/v1/keys/{id}/usage",
		"/functions/v1/keys/":          "",
		"/functions/v1/keys/..":        "",
		"/functions/v1/nothing":        "",
	} {
		got, _, _ := theContract(t).path(httptest.NewRequest("GET", target, nil).URL)
		if got != want {
			t.Errorf("%s: got %q, want %q", target, got, want)
		}
	}
}

// The contract has each member that core describes, with its type, in answers and in bodies.
func TestContractHasEveryMember(t *testing.T) {
	checkMembers(t, "User", &core.UserMembers, "is_disabled")
	checkMembers(t, "Plan", &core.PlanMembers, "")
	checkMembers(t, "Key", &core.KeyMembers, "")
	checkMembers(t, "Webhook", &core.WebhookMembers, "")
}

// checkMembers compares the schemas of a resource. A new resource takes all members but one.
func checkMembers[R, P any](t *testing.T, name string, of *core.Members[R, P], notNew string) {
	t.Helper()
	schemas := theContract(t).doc.Components.Schemas
	types := map[core.MemberType]string{core.TypeText: "string", core.TypeTexts: "array", core.TypeFlag: "boolean", core.TypeWhole: "integer",
		core.TypeTime: "string", core.TypeStart: "string", core.TypeObject: "object", core.TypeLimits: "array", core.TypeRate: "object", core.TypeOverrides: "array"}
	for _, schema := range []string{name, name + "Create", name + "Update"} {
		s := schemas[schema].Value
		properties, required := maps.Clone(s.Properties), slices.Clone(s.Required)
		for _, part := range s.AllOf {
			for member, property := range part.Value.Properties {
				if properties == nil {
					properties = openapi3.Schemas{}
				}
				properties[member] = property
			}
			required = append(required, part.Value.Required...)
		}
		for i := range of.List {
			m := &of.List[i]
			property := properties[m.Name]
			if m.Name == notNew && schema == name+"Create" {
				if property != nil {
					t.Errorf("%s: has %s", schema, m.Name)
				}
				continue
			}
			if property == nil {
				t.Errorf("%s: no %s", schema, m.Name)
				continue
			}
			var has []string
			for _, one := range append(openapi3.SchemaRefs{property}, property.Value.OneOf...) {
				if one.Value.Type != nil {
					has = append(has, *one.Value.Type...)
				}
			}
			if !slices.Contains(has, types[m.Type]) {
				t.Errorf("%s: %s has the types %v, want %s", schema, m.Name, has, types[m.Type])
			}
			if null := slices.Contains(has, "null"); schema != name && null != m.Nullable {
				t.Errorf("%s: %s may be null: got %v, want %v", schema, m.Name, null, m.Nullable)
			}
			want := schema == name || m.Required && schema == name+"Create" && m.Name != "request_period" // month by default without max_requests
			if got := slices.Contains(required, m.Name); got != want {
				t.Errorf("%s: %s is required: got %v, want %v", schema, m.Name, got, want)
			}
		}
	}
}
