package badgerstore

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/service"
)

// The traffic of TestKillEvents.
const (
	eventQuota     = 20 // of each customer, in a year
	eventCustomers = 8  // of each round
)

// TestKillEvents: events of limits survive kills between a count and its event, and while events are written. After the next start, each threshold that a
// counter has reached has exactly one event, and no other has one.
func TestKillEvents(t *testing.T) {
	kills := wantedKills(t)
	dir := t.TempDir()
	s := mustOpen(t, dir, Options{})
	if err := errors.Join(createFixture(s), createEventAccount(s)); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	late, told := 0, 0
	for round := range kills {
		runVictimUntil(t, victimConfig{Dir: dir, Events: true, Power: round%2 == 1, Round: round}, 2+rand.IntN(eventCustomers*eventQuota*3/2), func(string) {})
		s := mustOpen(t, dir, Options{})
		svc := service.New(s, service.Config{})
		before := len(eventsOf(t, s))
		for _, err := range []error{svc.RankAccounts(t.Context()), svc.FlushEvents(t.Context())} {
			if err != nil {
				t.Fatal(err)
			}
		}
		told = checkEvents(t, s)
		late += len(eventsOf(t, s)) - before
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("%d kills, %d events, %d of them written after the kill", kills, told, late)
	if late < kills/2 || told-late < kills/2 {
		t.Errorf("got %d events before and %d after %d kills: the test does not cover what it is for", told-late, late, kills)
	}
}

// createEventAccount creates an account with a plan and a webhook, so that its events keep their data.
func createEventAccount(s *Store) error {
	ctx, svc := context.Background(), service.New(s, service.Config{})
	a, _, _, err := svc.CreateAccount(ctx, "events")
	if err == nil {
		_, err = svc.CreatePlan(ctx, a.ID, core.PlanPatch{Name: new("plan"), Limit: core.Some(int64(eventQuota)), Period: new("year")})
	}
	if err == nil {
		err = s.Update(ctx, a.ID, func(tx core.Tx) error {
			return tx.PutWebhook(&core.Webhook{AccountID: a.ID, ID: "wh_1", Events: []string{core.EventExhausted, core.EventThreshold}})
		})
	}
	return err
}

// runVictimUntil runs a victim, and kills it after some lines of output. It calls read with each line.
func runVictimUntil(t *testing.T, o victimConfig, lines int, read func(line string)) {
	t.Helper()
	line, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), victimEnv+"="+string(line))
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	output := bufio.NewReader(out)
	for n := 0; ; n++ {
		line, err := output.ReadString('\n')
		switch {
		case n < lines && (err != nil || strings.HasPrefix(line, "failed")):
			t.Fatalf("the victim: %s, %v", line, err)
		case err != nil: // a line without its end was not received
			_ = cmd.Wait()
			return
		}
		if read(strings.TrimSuffix(line, "\n")); n == lines {
			_ = cmd.Process.Kill()
		}
	}
}

// runEvents makes requests of new customers beyond their quota, each in its own goroutine, and writes events all the time. It writes a line after each
// answer, and lines without end at last.
func runEvents(s *Store) error {
	ctx, svc := context.Background(), service.New(s, service.Config{})
	a, err := svc.AccountByName(ctx, "events")
	if err != nil {
		return err
	}
	plans, _, err := svc.Plans(ctx, a.ID, core.Page{Number: 1, Size: 1})
	if err != nil {
		return err
	}
	var customers sync.WaitGroup
	for i := range eventCustomers {
		u, err := svc.CreateUser(ctx, a.ID, core.UserPatch{Name: new("user"), PlanID: core.Some(plans[0].ID)})
		if err != nil {
			return err
		}
		_, secret, err := svc.CreateKey(ctx, a.ID, core.KeyPatch{Name: new("key"), UserID: &u.ID})
		if err != nil {
			return err
		}
		customers.Go(func() {
			for n := range eventQuota * 3 / 2 {
				if _, err := svc.Validate(ctx, a.ID, service.Request{Secret: secret, Endpoint: "/", Method: "GET", Cost: 1}); err != nil {
					fmt.Println("failed", err)
				}
				fmt.Println(i, n)
				time.Sleep(time.Duration(rand.IntN(2000)) * time.Microsecond) // so that kills come before, between and after events
			}
		})
	}
	go func() {
		for {
			time.Sleep(time.Duration(rand.IntN(20)) * time.Millisecond)
			if err := svc.WriteEvents(ctx); err != nil {
				fmt.Println("failed", err)
			}
		}
	}()
	customers.Wait()
	for {
		fmt.Println("waiting")
		time.Sleep(time.Millisecond)
	}
}

// eventsOf returns the pending events of the account events.
func eventsOf(t *testing.T, s *Store) []*core.Event {
	t.Helper()
	a, err := s.AccountByName(t.Context(), "events")
	if err != nil {
		t.Fatal(err)
	}
	list, _, err := s.Events(t.Context(), a.ID, core.EventFilter{Webhook: "wh_1"}, 0, 1_000_000)
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// checkEvents compares the events with the counters of all users, and returns the number of events.
func checkEvents(t *testing.T, s *Store) (n int) {
	t.Helper()
	a, err := s.AccountByName(t.Context(), "events")
	if err != nil {
		t.Fatal(err)
	}
	users, _, err := s.Users(t.Context(), a.ID, core.UserFilter{}, everything)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string][]string{}
	for _, e := range eventsOf(t, s) {
		var d struct{ Threshold int }
		if err := json.Unmarshal(e.Data, &d); err != nil {
			t.Fatal(err)
		}
		got[e.Subject] = append(got[e.Subject], fmt.Sprint(e.Type, " ", d.Threshold))
		n++
	}
	for _, u := range users {
		id := core.CounterID{Account: a.ID, UserID: u.ID}
		counters, err := s.Counters(t.Context(), []core.CounterID{id})
		if err != nil {
			t.Fatal(err)
		}
		used := counters[0].Requests[core.Year]
		var want []string
		if used >= eventQuota*80/100 {
			want = append(want, "limitkeeper.threshold 80")
		}
		if used >= eventQuota {
			want = append(want, "limitkeeper.threshold 100", "limitkeeper.exhausted 100")
		}
		if !slices.Equal(got[id.Subject()], want) {
			t.Errorf("user %d has used %d of %d: got the events %q, want %q", u.ID, used, eventQuota, got[id.Subject()], want)
		}
	}
	return n
}
