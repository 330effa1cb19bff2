package redisstore

import (
	"math"
	"strings"
	"testing"

	"github.com/limitkeeper/limitkeeper/core"
)

// The largest entry of a request takes no more in a history than core.MaxEntrySize: what
// one request costs all others is bounded.
func TestEntrySize(t *testing.T) {
	const head = 1 + 5 + 4 + 4 // see HEAD in shared.lua
	entry := encodeEntry(make([]byte, head), &core.Entry{
		KeyID: "key_" + strings.Repeat("x", 20), UserID: math.MaxInt64, Cost: 1_000_000_000,
		Endpoint: strings.Repeat("x", core.MaxEntryEndpoint), Method: strings.Repeat("x", core.MaxEntryMethod),
		IP: strings.Repeat("x", core.MaxEntryAddress),
	})
	if len(entry) > core.MaxEntrySize {
		t.Errorf("got %d bytes, want %d at most", len(entry), core.MaxEntrySize)
	}
	t.Logf("%d bytes", len(entry))
}
