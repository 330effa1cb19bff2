package memstore_test

import (
	"testing"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/memstore"
	"github.com/limitkeeper/limitkeeper/storage/storetest"
)

// The reference store keeps every promise of core.Store. A failure means that the suite contradicts
// the contract, or that the reference is wrong.
func TestConformance(t *testing.T) {
	storetest.Run(t, func(*testing.T) storetest.Opened {
		s := memstore.New()
		return storetest.Opened{Store: s, Reopen: func(testing.TB) core.Store {
			s = s.Reopen()
			return s
		}}
	})
}
