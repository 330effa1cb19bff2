package adminapi_test

import (
	"crypto/tls"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/limitkeeper/limitkeeper/adminapi"
	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/service"
	"github.com/limitkeeper/limitkeeper/storage/memstore"
	"github.com/limitkeeper/limitkeeper/storage/storetest"
)

// discarded is a response writer that discards the answer.
type discarded struct {
	header http.Header
	status int
}

func (d *discarded) Header() http.Header         { return d.header }
func (d *discarded) WriteHeader(status int)      { d.status = status }
func (d *discarded) Write(p []byte) (int, error) { return len(p), nil }

// rereadable is a body that can be read again.
type rereadable struct{ strings.Reader }

func (*rereadable) Close() error { return nil }

// BenchmarkValidate measures what the API costs over the store and HTTP.
func BenchmarkValidate(b *testing.B) {
	svc := service.New(storetest.Uncounted(memstore.New()), service.Config{})
	account, _, owner, err := svc.CreateAccount(b.Context(), "acme")
	if err != nil {
		b.Fatal(err)
	}
	plan, err := svc.CreatePlan(b.Context(), account.ID, core.PlanPatch{Name: new("Pro"), Limit: core.Some(int64(1000)), Period: new("month")})
	if err != nil {
		b.Fatal(err)
	}
	user, err := svc.CreateUser(b.Context(), account.ID, core.UserPatch{Name: new("ann"), PlanID: core.Some(plan.ID)})
	if err != nil {
		b.Fatal(err)
	}
	_, secret, err := svc.CreateKey(b.Context(), account.ID, core.KeyPatch{Name: new("k"), UserID: &user.ID})
	if err != nil {
		b.Fatal(err)
	}
	svc.Tune(service.Tunables{ThrottleLimit: 1 << 30})
	server := adminapi.New(config(svc))
	body := `{"api_key":"` + secret + `","endpoint":"/v1/items/42","method":"GET"}`
	r, _ := http.NewRequest("POST", "https://localhost/functions/v1/validate", nil)
	r.TLS, r.RemoteAddr = &tls.ConnectionState{HandshakeComplete: true}, "203.0.113.9:4711"
	r.Header.Set("Authorization", "Bearer "+owner)
	r.Header.Set("Content-Type", "application/json")
	reader := &rereadable{}
	var _ io.ReadCloser = reader
	w := &discarded{header: http.Header{}}
	b.ReportAllocs()
	for b.Loop() {
		reader.Reset(body)
		r.Body, r.ContentLength = reader, int64(len(body))
		clear(w.header)
		server.ServeHTTP(w, r)
		if w.status != http.StatusOK || w.header["X-Ratelimit-Remaining"][0] != "877" {
			b.Fatalf("answered with %d, %v", w.status, w.header)
		}
	}
}
