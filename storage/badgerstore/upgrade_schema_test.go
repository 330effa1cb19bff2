package badgerstore

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
)

// TestEarlierSchemas: a closed or killed store of schema 6 or 7 opens with all its data, keeps it after another kill, and
// counts on. A failure means that an upgrade loses usage. testdata has the stores, see schema6/make_test.go and schema7/make.diff.
func TestEarlierSchemas(t *testing.T) {
	for _, name := range []string{"schema6/closed", "schema6/killed", "schema7/closed", "schema7/killed"} {
		t.Run(name, func(t *testing.T) {
			dir, want := fixture(t, filepath.Join("testdata", name+".tar.gz"))
			for _, when := range []string{"upgraded", "opened after a kill", "opened again"} {
				s := openAlone(t, dir, quiet)
				wantAnswers(t, s, want, when)
				if when == "upgraded" {
					abandon(t, s)
				} else if err := s.Close(); err != nil {
					t.Fatal(err)
				}
			}
			if got := checkDamages(t, dir); len(got) > 0 {
				t.Errorf("Check: got %q, want no damage", got)
			}
			s := openAlone(t, dir, quiet)
			before := counterOf(t, s, ofKey("kept"))
			if before.Requests[core.Lifetime] != before.Requests[core.Year] || before.Requests[core.Year] == 0 {
				t.Errorf("got %v, want a lifetime that begins with the year", before.Requests)
			}
			c := request("kept", 1, 1<<20, noon.Add(3*time.Hour))
			c.Costs = []core.MeterCost{{Meter: "tokens", Cost: 5}}
			consume(t, s, c)
			for _, how := range []string{"counted", "killed", "closed"} {
				switch how {
				case "killed":
					writeCheckpoint(t, s)
					consume(t, s, c)
					abandon(t, s)
					s = openAlone(t, dir, quiet)
				case "closed":
					if err := s.Close(); err != nil {
						t.Fatal(err)
					}
					s = openAlone(t, dir, quiet)
				}
				want := before.Clone()
				want.Add(c.Charge())
				if how != "counted" {
					want.Add(c.Charge())
				}
				if got := counterOf(t, s, ofKey("kept")); !sameCounter(got, want) {
					t.Errorf("%s: got %+v, want %+v", how, got, want)
				}
			}
		})
	}
}
