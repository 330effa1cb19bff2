package main

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// exampleAnswer is an answer of /validate.
var exampleAnswer = answer{
	header: http.Header{"Content-Type": {"application/json"}, "Cache-Control": {"no-store"}, "X-Ratelimit-Plan": {"Bench"},
		"Ratelimit": {`"year";r=9007199254740990;t=3450000`}, "Date": {"now"}, "Content-Length": {"5"}, "Server": {"Caddy"}},
	body: `{"success":true,"details":{"current_usage":1}}` + "\n",
}

// The static answer has every header field of /validate, once: a missing field would make
// it cheaper, and Caddy itself sets Server, Date and Content-Length.
func TestStaticAnswer(t *testing.T) {
	want := "header {\n\t\tCache-Control `no-store`\n\t\tContent-Type `application/json`\n\t\tRatelimit `\"year\";r=9007199254740990;t=3450000`\n" +
		"\t\tX-Ratelimit-Plan `Bench`\n\t}\n\trespond `" + exampleAnswer.body + "`"
	if got := staticAnswer(exampleAnswer); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// "Caddy, same headers" adds exactly the fields that the gateway adds to the answer of the
// upstream.
func TestAddedFields(t *testing.T) {
	got := addedFields(exampleAnswer.header, http.Header{"Content-Type": {"application/json"}})
	if diff := cmp.Diff([]string{"Cache-Control", "Ratelimit", "X-Ratelimit-Plan"}, fieldNames(got)); diff != "" {
		t.Errorf("fields (-want +got):\n%s", diff)
	}
}

// Requests are complete and their bodies JSON, each with another key.
func TestValidateTarget(t *testing.T) {
	l := &limitkeeper{ownerKey: "lk_owner"}
	keys := []string{"lk_user_1", "lk_user_2"}
	secure := l.validateTarget("127.0.0.1:8443", true, keys)
	if len(secure.requests) != 2 || secure.url() != "https://localhost:8443/" {
		t.Errorf("got %d requests to %s, want 2 to https://localhost:8443/", len(secure.requests), secure.url())
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
		if diff := cmp.Diff(map[string]string{"api_key": keys[i], "endpoint": "/v1/items", "method": "GET"}, got); diff != "" {
			t.Errorf("body (-want +got):\n%s", diff)
		}
	}
	if plain := l.validateTarget("127.0.0.1:8080", false, keys); plain.url() != "http://127.0.0.1:8080/" {
		t.Errorf("without TLS: got %s", plain.url())
	}
}

// ratelimit decides on one key for each request, by a rule that exists. Only an answer that
// allows is right, with or without spaces in its JSON.
func TestRatelimit(t *testing.T) {
	var got struct {
		Domain      string
		Descriptors []struct{ Entries []struct{ Key, Value string } }
	}
	if err := json.Unmarshal([]byte(ratelimitBody("lk_user_1")), &got); err != nil {
		t.Fatal(err)
	}
	if len(got.Descriptors) != 1 || got.Descriptors[0].Entries[0].Value != "lk_user_1" {
		t.Fatalf("got %+v, want the key", got)
	}
	for _, want := range []string{"domain: " + got.Domain + "\n", "key: " + got.Descriptors[0].Entries[0].Key + "\n"} {
		if !strings.Contains(ratelimitRules, want) {
			t.Errorf("no %q in %s", want, ratelimitRules)
		}
	}
	for body, want := range map[string]bool{`{"overallCode":"OK", "st`: true, `{"overallCode": "OK","st`: true, `{"overallCode":"OVER_LIMIT"`: false, `{"overallCode":"OKAY"`: false} {
		if got := ratelimitAllowed.MatchString(body); got != want {
			t.Errorf("%s: got %v, want %v", body, got, want)
		}
	}
}
