package apply_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/limitkeeper/limitkeeper/apply"
	"github.com/limitkeeper/limitkeeper/core/service"
	"github.com/limitkeeper/limitkeeper/storage/memstore"
)

// A file in git applies again after an override has ended. A new override that has ended is refused with its line.
func TestEndedOverride(t *testing.T) {
	b, now := newBench(t, memstore.New()), time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)
	b.svc = service.New(b.store, service.Config{Clock: func() time.Time { return now }})
	file := func(name string, most int) string {
		return fmt.Sprintf("account: acme\nusers:\n- name: %s\n  overrides: [{meter: requests, max: %d, period: day, until: 2026-03-02T00:00:00Z}]\n", name, most)
	}
	b.apply(file("Ann", 5), apply.Options{}, `+ user "Ann"`)
	now = now.Add(24 * time.Hour)
	b.apply(file("Ann", 5), apply.Options{})
	for _, again := range []string{file("Ann", 6), file("Ben", 5)} {
		b.refuse(again, apply.Options{}, "line 4: users[0].overrides: The until of override 1 must be in the future")
	}
}
