package adminapi_test

import (
	"context"
	"net/http"
	"testing"

	"github.com/limitkeeper/limitkeeper/core"
)

// Only a well-formed header with a valid key authenticates. The challenge of a 401 tells a missing credential
// from an invalid one.
func TestAuthorization(t *testing.T) {
	a := newAPI(t)
	const (
		none  = `Bearer realm="limitkeeper"`
		wrong = `Bearer realm="limitkeeper", error="invalid_token"`
	)
	for _, tc := range []struct {
		name      string
		values    []string
		code      core.Code // "" when it is let in
		challenge string
	}{
		{"as documented", []string{"Bearer " + a.owner}, "", ""},
		{"scheme in another case", []string{"bEARER " + a.owner}, "", ""},
		{"more space", []string{"Bearer   " + a.owner + " "}, "", ""},
		{"no header", nil, core.CodeUnauthorized, none},
		{"empty header", []string{""}, core.CodeUnauthorized, none},
		{"scheme only", []string{"Bearer"}, core.CodeUnauthorized, none},
		{"scheme and a space", []string{"Bearer "}, core.CodeUnauthorized, none},
		{"no scheme", []string{a.owner}, core.CodeUnauthorized, none},
		{"another scheme", []string{"Basic " + a.owner}, core.CodeUnauthorized, none},
		{"two tokens", []string{"Bearer " + a.owner + " " + a.owner}, core.CodeUnauthorized, none},
		{"two headers", []string{"Bearer " + a.owner, "Bearer " + a.owner}, core.CodeUnauthorized, none},
		{"not a key", []string{"Bearer something"}, core.CodeInvalidAPIKey, wrong},
		{"with a comma", []string{"Bearer " + a.owner + ","}, core.CodeInvalidAPIKey, wrong},
		{"unknown", []string{"Bearer lk_AAAAAAAAAAAAAAAAAAAAAAAAAAAAA"}, core.CodeInvalidAPIKey, wrong},
		{"in another case", []string{"Bearer LK_" + a.owner[3:]}, core.CodeInvalidAPIKey, wrong},
		{"an end-user's", []string{"Bearer lk_user_AAAAAAAAAAAAAAAAAAAAAAAA"}, core.CodeInvalidAPIKey, wrong},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := a.in(t).do("GET", prefix+"/users", nil, func(r *http.Request) { r.Header["Authorization"] = tc.values })
			if tc.code == "" {
				r.want(200)
				return
			}
			r.wantCode(401, tc.code)
			if got := r.header.Get("WWW-Authenticate"); got != tc.challenge {
				t.Errorf("WWW-Authenticate: got %q, want %q", got, tc.challenge)
			}
		})
	}
}

// A revoked key is refused from the next request on.
func TestAuthorizationRevoked(t *testing.T) {
	a := newAPI(t)
	ctx := context.Background()
	acct, err := a.svc.AccountByName(ctx, "acme")
	if err != nil {
		t.Fatal(err)
	}
	k, secret, err := a.svc.CreateOwnerKey(ctx, acct.ID, core.OwnerKeySpec{Name: "second"})
	if err != nil {
		t.Fatal(err)
	}
	b := a.as(secret)
	b.do("GET", prefix+"/users", nil).want(200)
	if _, err := a.svc.RevokeOwnerKey(ctx, acct.ID, k.ID); err != nil {
		t.Fatal(err)
	}
	b.do("GET", prefix+"/users", nil).wantCode(401, core.CodeInvalidAPIKey)
	a.do("GET", prefix+"/users", nil).want(200)
}

// Every operation except the public ones needs a key: a new operation cannot be public by mistake.
func TestEveryOperationNeedsKey(t *testing.T) {
	a := newAPI(t)
	for op, o := range operations(t) {
		method, path := splitOp(op)
		r := a.bad(method, path, nil, with("Authorization", ""))
		if public := o.Security != nil; public {
			r.want(200)
		} else {
			r.wantCode(401, core.CodeUnauthorized)
		}
	}
}
