package command

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/service"
	"github.com/limitkeeper/limitkeeper/storage/memstore"
)

// The admin endpoint refuses an adjustment without a period, or with one that it does not use, also from another client than
// the command.
func TestAdjustUsage(t *testing.T) {
	s := service.New(memstore.New(), service.Config{})
	a, _, _, err := s.CreateAccount(t.Context(), "acme")
	if err != nil {
		t.Fatal(err)
	}
	p, err := s.CreatePlan(t.Context(), a.ID, core.PlanPatch{Name: new("p"), Limit: core.Some(int64(1000)), Period: new("month")})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.CreateUser(t.Context(), a.ID, core.UserPatch{Name: new("u"), PlanID: core.Some(p.ID)}); err != nil {
		t.Fatal(err)
	}
	for body, want := range map[string]string{
		`{"meter":"requests","value":3,"reason":"x"}`:                              "",
		`{"meter":"requests","set":true,"value":7,"period":"month","reason":"x"}`:  "",
		`{"meter":"requests","set":true,"value":7,"reason":"x"}`:                   "period: want one of",
		`{"meter":"requests","set":true,"value":7,"period":"decade","reason":"x"}`: "period: want one of",
		`{"meter":"requests","value":3,"period":"month","reason":"x"}`:             "a delta changes every period",
	} {
		r := httptest.NewRequest(http.MethodPost, "/limitkeeper/usage?id=1", strings.NewReader(body))
		switch _, err := adjustUsage(s, r, a.ID); {
		case want == "" && err != nil, want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("%s: got error %v, want %q", body, err, want)
		}
	}
}
