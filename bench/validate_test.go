package main

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// anAnswer is one as ours gives.
var anAnswer = answer{
	header: http.Header{"Content-Type": {"application/json"}, "Cache-Control": {"no-store"}, "X-Ratelimit-Plan": {"Bench"},
		"Ratelimit": {`"year";r=9007199254740990;t=3450000`}, "Date": {"now"}, "Content-Length": {"5"}, "Server": {"Caddy"}},
	body: `{"success":true,"details":{"current_usage":1}}` + "\n",
}

// The floor answers with what ours answers: leaving a field out would make it cheaper
// than it is, and one that Caddy sets by itself would be there twice.
func TestRespond(t *testing.T) {
	want := []string{
		"header Cache-Control `no-store`", "header Content-Type `application/json`",
		"header Ratelimit `\"year\";r=9007199254740990;t=3450000`", "header X-Ratelimit-Plan `Bench`", "respond `" + anAnswer.body + "`",
	}
	if got := respond(anAnswer); got != strings.Join(want, "\n\t") {
		t.Errorf("got %s, want %s", got, strings.Join(want, "\n\t"))
	}
}

// Requests are complete and their bodies JSON, each with another key.
func TestValidateTarget(t *testing.T) {
	o := &ours{owner: "lk_owner", secrets: []string{"lk_user_1", "lk_user_2"}}
	secure := o.validateTarget("127.0.0.1:8443", true)
	if len(secure.requests) != 2 || secure.url("/") != "https://localhost:8443/" {
		t.Errorf("got %d requests to %s, want 2 to https://localhost:8443/", len(secure.requests), secure.url("/"))
	}
	for i, request := range secure.requests {
		header, body, _ := strings.Cut(request, "\r\n\r\n")
		for _, want := range []string{"POST /functions/v1/validate HTTP/1.1\r\n", "\r\nHost: localhost:8443\r\n", "\r\nAuthorization: Bearer lk_owner\r\n"} {
			if !strings.Contains(header, want) {
				t.Errorf("the header has no %q:\n%s", want, header)
			}
		}
		var got map[string]string
		if err := json.Unmarshal([]byte(body), &got); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(map[string]string{"api_key": o.secrets[i], "endpoint": "/v1/items", "method": "GET"}, got); diff != "" {
			t.Errorf("body (-want +got):\n%s", diff)
		}
	}
	if plain := o.validateTarget("127.0.0.1:8080", false); plain.url("/x") != "http://127.0.0.1:8080/x" {
		t.Errorf("without TLS: got %s", plain.url("/x"))
	}
}

// ratelimit is asked about one key in each window, and only an answer that allows is right, however
// its JSON is spaced.
func TestRatelimitBodies(t *testing.T) {
	var got struct {
		Domain      string
		Descriptors []struct{ Entries []struct{ Key, Value string } }
	}
	if err := json.Unmarshal([]byte(ratelimitBody("lk_user_1", []string{"month", "day"})), &got); err != nil {
		t.Fatal(err)
	}
	if got.Domain != "bench" || len(got.Descriptors) != 2 {
		t.Fatalf("got %+v, want two windows in the domain bench", got)
	}
	for i, want := range []string{"api_key_month", "api_key_day"} {
		if e := got.Descriptors[i].Entries[0]; e.Key != want || e.Value != "lk_user_1" {
			t.Errorf("got %+v, want the key in %s", e, want)
		}
		if !strings.Contains(ratelimitRules(), "key: "+want+"\n    rate_limit:\n      unit: "+strings.TrimPrefix(want, "api_key_")+"\n") {
			t.Errorf("no rule for %s in %s", want, ratelimitRules())
		}
	}
	for body, want := range map[string]bool{`{"overallCode":"OK", "st`: true, `{"overallCode": "OK","st`: true, `{"overallCode":"OVER_LIMIT"`: false, `{"overallCode":"OKAY"`: false} {
		if got := allowedBy.MatchString(body); got != want {
			t.Errorf("%s: got %v, want %v", body, got, want)
		}
	}
}
