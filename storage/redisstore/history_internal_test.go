package redisstore

import (
	"math"
	"strings"
	"testing"

	"github.com/limitkeeper/limitkeeper/core"
)

// The largest possible entry has at most core.MaxEntrySize bytes. A failure breaks the bound on the memory
// that one request uses.
func TestEntrySize(t *testing.T) {
	entry := encodeEntry(nil, markAllowed, &core.Entry{
		KeyID: "key_" + strings.Repeat("x", 20), UserID: math.MaxInt64, Cost: 1_000_000_000,
		Endpoint: strings.Repeat("x", core.MaxEntryEndpoint), Method: strings.Repeat("x", core.MaxEntryMethod),
		IP: strings.Repeat("x", core.MaxEntryAddress),
	}, core.DefaultRetention)
	if len(entry) > core.MaxEntrySize {
		t.Errorf("got %d bytes, want %d at most", len(entry), core.MaxEntrySize)
	}
	t.Logf("%d bytes", len(entry))
}
