package caddymodule

import (
	"context"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/limitkeeper/limitkeeper/core"
)

// TestGRPCStatus: a client of gRPC gets a status of gRPC for each refusal. A failure means that it takes the refusal for an outage and sends the
// request again.
func TestGRPCStatus(t *testing.T) {
	s := newServer(t)
	s.Must(s.Load(strings.Replace(s.Config("store memory", "limitkeeper {\nrequire scope write\n}\nrespond 404"), "servers {", "servers {\nprotocols h1 h2c", 1)))
	ten := s.Tenant("default", 1)
	conn, err := grpc.NewClient("127.0.0.1:"+s.Port, grpc.WithTransportCredentials(insecure.NewCredentials()))
	s.Must(err)
	t.Cleanup(func() { _ = conn.Close() })
	call := func(key string) *status.Status {
		ctx, cancel := context.WithTimeout(metadata.AppendToOutgoingContext(t.Context(), "x-api-key", key), time.Minute)
		defer cancel()
		return status.Convert(conn.Invoke(ctx, "/items.Items/List", &emptypb.Empty{}, &emptypb.Empty{}))
	}
	call(ten.Secret) // the quota
	want := func(name, key string, code codes.Code, message string) {
		t.Helper()
		if got := call(key); got.Code() != code || got.Message() != message {
			t.Errorf("%s: got %v %q, want %v %q", name, got.Code(), got.Message(), code, message)
		}
	}
	want("over the quota", ten.Secret, codes.ResourceExhausted, "Rate limit exceeded")
	want("unknown key", "lk_user_unknown", codes.Unauthenticated, "API key not found")
	want("without a key", "", codes.Unauthenticated, "API key is required")
	_, err = s.Service().UpdateKey(t.Context(), ten.Account, ten.Key.ID, core.KeyPatch{Scopes: core.Some([]string{"read"})})
	s.Must(err)
	want("restricted", ten.Secret, codes.PermissionDenied, "The API key lacks the scope write")
}

// TestErrorForms: refusals have the form that the option names, and problem details only for clients that accept them.
func TestErrorForms(t *testing.T) {
	end := core.Year.Window(time.Now().UTC()).End.Format(time.RFC3339)
	for _, test := range []struct {
		options, accept, contentType, want string // after the quota
		missing                            string // without a key
	}{
		{"errors openai", "*/*", "application/json",
			`{"error":{"code":"insufficient_quota","message":"Rate limit exceeded: 1 of 1 requests used in the period year. The period ends at ` + end + `","param":null,"type":"insufficient_quota"}}`,
			`{"error":{"code":"invalid_api_key","message":"API key is required","param":null,"type":"invalid_request_error"}}`},
		{"problem_json", "application/json, application/problem+json;q=0.9", "application/problem+json",
			`{"detail":"Rate limit exceeded","reason":"quota","status":429,"title":"Rate limit exceeded","type":"https://iana.org/assignments/http-problem-types#quota-exceeded","violated-policies":["year"]}`,
			`{"code":"UNAUTHORIZED","detail":"API key is required","status":401,"title":"Unauthorized","type":"about:blank"}`},
		{"problem_json", "application/json", "application/json", "", `{"success":false,"error":"API key is required","code":"UNAUTHORIZED"}`},
	} {
		t.Run(test.options+" "+test.accept, func(t *testing.T) {
			s := newServer(t)
			s.Start("store memory", "limitkeeper {\n"+test.options+"\n}\nrespond ok")
			ten := s.Tenant("default", 1)
			s.Get("/", "X-API-Key: "+ten.Secret)
			got := s.Get("/", "X-API-Key: "+ten.Secret, "Accept: "+test.accept)
			if got.StatusCode != 429 || got.Header.Get("Content-Type") != test.contentType || test.want != "" && strings.TrimSpace(got.Text) != test.want ||
				got.Header.Get("Retry-After") == "" || got.Header.Get("X-RateLimit-Remaining") != "0" {
				t.Errorf("over the quota: got %d %v\n%s\nwant %s", got.StatusCode, got.Header, got.Text, test.want)
			}
			if got := s.Get("/", "Accept: "+test.accept); got.StatusCode != 401 || strings.TrimSpace(got.Text) != test.missing || got.Header.Get("WWW-Authenticate") == "" {
				t.Errorf("without a key: got %d %v\n%s\nwant %s", got.StatusCode, got.Header, got.Text, test.missing)
			}
		})
	}
}
