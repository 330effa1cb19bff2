package core_test

import (
	"testing"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
)

// The number of an imported audit entry is not before its time. It may be later, because a clock may have stepped back.
func TestAuditEntryCheck(t *testing.T) {
	at := time.Date(2026, time.November, 29, 12, 0, 0, 0, time.UTC)
	for seq, ok := range map[int64]bool{
		core.AuditSeq(at): true, core.AuditSeq(at) + 1: true, core.AuditSeq(at.Add(time.Hour)): true,
		0: false, core.AuditSeq(at) - 2: false, core.AuditSeq(at.Add(2 * core.AuditRetention)): true, core.MaxLimit + 1: false,
	} {
		e := &core.AuditEntry{Seq: seq, At: at, Action: "plan.create"}
		if err := e.Check(); (err == nil) != ok {
			t.Errorf("number %d at %v: got %v, want valid: %v", seq, at, err, ok)
		}
	}
}
