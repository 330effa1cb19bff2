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
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
)

// heldTokens is what each hold of the test holds.
const heldTokens = 100

// TestKillHolds: holds survive kills between their opening and their end. An answered settlement is there once, with its costs; any other is
// there whole or not at all; an answered hold is open or ended as asked; the tokens of both counters are the sum over all holds, in the windows of
// the day on which they were opened; and an open hold can still be settled.
func TestKillHolds(t *testing.T) {
	kills := wantedKills(t)
	dir := t.TempDir()
	s := mustOpen(t, dir, Options{})
	if err := createFixture(s); err != nil {
		t.Fatal(err)
	}
	c := holdConsumption(t, s)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	asked := map[string]*askedHold{}
	ended := 0
	for round := range kills {
		runHoldVictim(t, victimConfig{Dir: dir, Holds: true, Power: round%2 == 1, Round: round}, asked)
		s := mustOpen(t, dir, Options{})
		ended = checkHolds(t, s, c, asked, round)
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("%d kills, %d holds, %d of them ended", kills, len(asked), ended)
	if len(asked) < kills || ended < kills {
		t.Errorf("got %d holds and %d ended ones after %d kills: the test does not cover what it is for", len(asked), ended, kills)
	}
}

// askedHold is what a victim has asked for a hold. final is -1 before its end.
type askedHold struct {
	opened, ended bool // answered
	final         int64
	released      bool
}

// holdConsumption returns a request of the key of the fixture.
func holdConsumption(t *testing.T, s *Store) core.Consumption {
	t.Helper()
	accounts, _, err := s.Accounts(t.Context(), core.Page{Number: 1, Size: 1})
	if err != nil || len(accounts) == 0 {
		t.Fatalf("accounts: %v, %v", accounts, err)
	}
	keys, _, err := s.Keys(t.Context(), accounts[0].ID, core.KeyFilter{}, core.Page{Number: 1, Size: 1})
	if err != nil || len(keys) == 0 {
		t.Fatalf("keys: %v, %v", keys, err)
	}
	return holdOf(keys[0])
}

func holdOf(k *core.Key) core.Consumption {
	return core.Consumption{Account: k.AccountID, KeyID: k.ID, KeySeq: k.Seq, UserID: k.UserID, Shared: true, Cost: 1, Retention: time.Hour,
		Terms: core.Terms{PlanID: "plan_1", Period: core.Month, Limit: core.Unlimited}, Costs: []core.MeterCost{{Meter: "tokens", Cost: heldTokens}},
		Entry: core.Entry{KeyID: k.ID, UserID: k.UserID, Endpoint: "/", Method: "POST"}}
}

// runHolds opens and ends holds until the process is killed. It writes a line before each call and one after the answer.
func runHolds(s *Store) error {
	ctx := context.Background()
	accounts, _, err := s.Accounts(ctx, core.Page{Number: 1, Size: 1})
	if err != nil {
		return err
	}
	keys, _, err := s.Keys(ctx, accounts[0].ID, core.KeyFilter{}, core.Page{Number: 1, Size: 1})
	if err != nil {
		return err
	}
	failed := make(chan error)
	for i := range 8 {
		go func() {
			for n := 0; ; n++ {
				c := holdOf(keys[0])
				c.Entry.At = time.Now().UTC()
				c.Hold = &core.NewHold{ID: core.NewHoldID(c.UserID), ExpiresAt: c.Entry.At.Truncate(time.Millisecond).Add(core.MaxHoldTime)}
				fmt.Println("open", c.Hold.ID)
				if _, err := s.Consume(ctx, &c); err != nil {
					failed <- err
					return
				}
				fmt.Println("opened", c.Hold.ID)
				if (n+i)%5 == 0 {
					continue // stays open
				}
				h, err := s.Hold(ctx, c.Account, c.Hold.ID)
				if err != nil {
					failed <- err
					return
				}
				final, requests, status := rand.Int64N(2*heldTokens)+1, int64(1), core.HoldSettled
				costs := []core.MeterCost{{Meter: "tokens", Cost: final}}
				if n%4 == 0 {
					final, requests, status, costs = 0, 0, core.HoldReleased, nil
				}
				fmt.Println("end", h.ID, final, status)
				if _, _, err := s.Settle(ctx, h.Settle(c.Account, status, requests, costs, time.Now().UTC(), time.Hour)); err != nil {
					failed <- err
					return
				}
				fmt.Println("ended", h.ID)
			}
		}()
	}
	return <-failed
}

// runHoldVictim runs a victim for a while, and notes what it has asked and what was answered.
func runHoldVictim(t *testing.T, config victimConfig, asked map[string]*askedHold) {
	t.Helper()
	line, err := json.Marshal(config)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), victimEnv+"="+string(line))
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	after := 20 + rand.IntN(300) // lines
	lines := bufio.NewScanner(out)
	for n := 0; lines.Scan(); n++ {
		if n == after {
			_ = cmd.Process.Kill()
		}
		words := strings.Fields(lines.Text())
		if len(words) < 2 {
			continue
		}
		h := asked[words[1]]
		switch words[0] {
		case "open":
			asked[words[1]] = &askedHold{final: -1}
		case "opened":
			h.opened = true
		case "end":
			h.final, _ = strconv.ParseInt(words[2], 10, 64)
			h.released = words[3] == string(core.HoldReleased)
		case "ended":
			h.ended = true
		case "failed":
			t.Fatalf("the victim: %s", lines.Text())
		}
	}
	_ = cmd.Wait()
}

// checkHolds compares the holds of a store with what was asked, and settles most of those that are open. It returns the number of ended holds.
func checkHolds(t *testing.T, s *Store, c core.Consumption, asked map[string]*askedHold, round int) (ended int) {
	t.Helper()
	var sum, requests int64
	var open []*core.Hold
	for id, a := range asked {
		h, err := s.Hold(t.Context(), c.Account, id)
		if errors.Is(err, core.ErrHoldNotFound) && !a.opened {
			continue
		}
		if err != nil {
			t.Fatalf("kill %d: hold %s, answered: %t: %v", round, id, a.opened, err)
		}
		requests++
		switch h.Status {
		case core.HoldOpen:
			if a.ended {
				t.Errorf("kill %d: hold %s is open, and its end was answered", round, id)
			}
			sum, open = sum+heldTokens, append(open, h)
			continue
		case core.HoldReleased:
			requests-- // everything is given back, the request too
		}
		ended++
		final := int64(0)
		if len(h.SettledCosts) > 0 {
			final = h.SettledCosts[0].Cost
		}
		if a.final != final || a.released != (h.Status == core.HoldReleased) {
			t.Errorf("kill %d: hold %s has ended as %s with %d, want %d, released: %t", round, id, h.Status, final, a.final, a.released)
		}
		sum += final
	}
	for _, h := range open[:max(0, len(open)-20)] { // the others stay open over more kills
		costs := []core.MeterCost{{Meter: "tokens", Cost: 7}}
		if _, _, err := s.Settle(t.Context(), h.Settle(c.Account, core.HoldSettled, 1, costs, time.Now().UTC(), time.Hour)); err != nil {
			t.Fatalf("kill %d: settle an open hold: %v", round, err)
		}
		a := asked[h.ID]
		a.final, a.ended, a.released = 7, true, false
		sum += 7 - heldTokens
		ended++
	}
	counters, err := s.Counters(t.Context(), []core.CounterID{{Account: c.Account, KeyID: c.KeyID}, {Account: c.Account, UserID: c.UserID}})
	if err != nil {
		t.Fatal(err)
	}
	for i := range counters {
		used := counters[i].Usage("tokens", core.Lifetime, nil, time.Now()).Used
		if n := counters[i].Requests[core.Lifetime]; used != sum || n != requests {
			t.Errorf("kill %d: counter %d has %d tokens of %d requests, want %d of %d", round, i, used, n, sum, requests)
		}
	}
	return ended
}
