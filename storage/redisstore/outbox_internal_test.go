package redisstore

import (
	"testing"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
)

// A transaction that has returned has done its chores, also when others in the process are
// just done with those that there were before.
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
		t.Errorf("chores that are left: %q, %v", left, err)
	}
}

// An account that is gone, since a server took over that did not have it yet, is missed by
// every process once it is told that something may be lost.
func TestForgetsAccounts(t *testing.T) {
	m := newMoveTest(t)
	if there, err := m.s.accountExists(t.Context(), moveAccount); !there || err != nil {
		t.Fatalf("exists: %v, %v", there, err)
	}
	if err := m.s.client.Do(t.Context(), m.s.client.B().Flushall().Build()).Error(); err != nil {
		t.Fatal(err)
	}
	for begun := time.Now(); ; time.Sleep(time.Millisecond) {
		there, err := m.s.accountExists(t.Context(), moveAccount)
		if err == nil && !there {
			break
		}
		if time.Since(begun) > 10*time.Second {
			t.Fatalf("exists: %v, %v; want that it is missed", there, err)
		}
	}
	err := m.s.Update(t.Context(), moveAccount, func(tx core.Tx) error {
		return tx.PutUser(&core.User{AccountID: moveAccount})
	})
	if err == nil {
		t.Error("a user was put into an account that is missing")
	}
}
