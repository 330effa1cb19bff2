package service_test

import (
	"testing"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/service"
	"github.com/limitkeeper/limitkeeper/storage/memstore"
)

// A look shows the limits of a request, and leaves no trace: no usage and no entry in a history, whatever the decision would be.
func TestLook(t *testing.T) {
	c := newTenant(t, service.New(memstore.New(), service.Config{}), "acme")
	k, secret := c.newKey("k")
	look := func(limits int) {
		t.Helper()
		got, err := c.svc.Look(t.Context(), c.id, service.Request{Secret: secret, Endpoint: "/v1/chat", Method: "POST", Cost: 5, HoldFor: 1e9})
		if c.ok(err); len(got) != limits || limits > 0 && got[0].Used != 0 {
			t.Errorf("got %+v, want %d limits without usage", got, limits)
		}
		if list, n, err := c.svc.KeyHistory(t.Context(), c.id, k.ID, core.Page{Number: 1, Size: 9}); err != nil || n != 0 {
			t.Errorf("the history has %d entries, want none: %v, %v", n, list, err)
		}
	}
	look(1)
	for _, p := range []core.KeyPatch{{AllowedEndpoints: core.Some([]string{"/v2/*"})}, {Status: new(string(core.KeyInactive))}} {
		_, err := c.svc.UpdateKey(t.Context(), c.id, k.ID, p)
		c.ok(err)
		look(0)
	}
}
