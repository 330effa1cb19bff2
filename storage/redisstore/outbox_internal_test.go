package redisstore

import (
	"testing"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/resource"
)

// Update runs its own tasks before it returns, even if a concurrent drain has read the outbox before its
// commit.
func TestUpdateRunsOwnTasks(t *testing.T) {
	m := newMoveTest(t)
	m.mustConsume(1)
	begun, end := make(chan bool), make(chan bool)
	go func() {
		_, _, _ = m.s.drains.Do(moveAccount, func() (any, error) {
			close(begun)
			<-end
			return nil, nil
		})
	}()
	<-begun
	done := make(chan bool)
	go func() {
		defer close(done)
		m.moveTo(2)
	}()
	select {
	case <-done:
	case <-time.After(500 * time.Millisecond):
	}
	close(end)
	<-done
	if left, err := m.s.pendingTasks(t.Context(), moveAccount); err != nil || len(left) > 0 {
		t.Errorf("tasks that are left: %q, %v", left, err)
	}
}

// An account that is lost in a failover is found missing by every process once its watch reports possible
// losses.
func TestForgetsAccounts(t *testing.T) {
	m := newMoveTest(t)
	if there, err := m.s.newReader(t.Context(), resource.Scope{Account: moveAccount}).Exists(); !there || err != nil {
		t.Fatalf("exists: %v, %v", there, err)
	}
	if err := m.s.client.Do(t.Context(), m.s.client.B().Flushall().Build()).Error(); err != nil {
		t.Fatal(err)
	}
	for begun := time.Now(); ; time.Sleep(time.Millisecond) {
		_, _ = m.s.Accept(t.Context())
		there, err := m.s.newReader(t.Context(), resource.Scope{Account: moveAccount}).Exists()
		if err == nil && !there {
			break
		}
		if time.Since(begun) > time.Minute {
			t.Fatalf("exists: %v, %v; want false", there, err)
		}
	}
	err := m.s.Update(t.Context(), moveAccount, func(tx core.Tx) error {
		return tx.PutUser(&core.User{AccountID: moveAccount})
	})
	if err == nil {
		t.Error("PutUser worked in a missing account")
	}
}
