package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/limitkeeper/limitkeeper/storage/redisstore/redistest"
)

// counterOp is an operation on one counter, with a quota of requests.
type counterOp struct {
	kind  string // consume, hold, settle, release, expire, adjust, usage
	cost  int64  // or the change of an adjustment, or the final cost of a settlement
	id    string // of the hold; of a hold without an answer, a name of the test
	held  int64  // by the hold that is ended
	short bool   // a hold of one second that gives back what it holds
	quota int64
}

// counterAnswer is what was answered. Without an answer, the operation has happened once or not at all.
type counterAnswer struct {
	answered bool
	unsent   bool  // the server did not listen: the operation has not happened
	allowed  bool  // of a request
	used     int64 // afterwards; -1 if the answer does not say it
	final    int64 // of a settlement or release: the first final cost
	conflict bool  // of one: the hold was ended in the other way
}

// counterState is a counter: what is used, how each hold has ended, and which short holds are open, as "<id>=<kind><final>;" for each,
// sorted. The kind is the first letter of settle, release, expire or open.
type counterState struct {
	used  int64
	ended string
}

// end returns how a hold has ended.
func (s counterState) end(id string) (kind string, final int64, ok bool) {
	for one := range strings.SplitSeq(s.ended, ";") {
		if rest, has := strings.CutPrefix(one, id+"="); has {
			_, _ = fmt.Sscan(rest[1:], &final)
			return rest[:1], final, true
		}
	}
	return "", 0, false
}

// with returns the state with another state of a hold.
func (s counterState) with(id, kind string, final int64) counterState {
	all := slices.DeleteFunc(strings.Split(strings.TrimSuffix(s.ended, ";"), ";"), func(one string) bool { return strings.HasPrefix(one, id+"=") })
	all = append(all, fmt.Sprintf("%s=%s%d", id, kind, final))
	slices.Sort(all)
	s.ended = strings.TrimPrefix(strings.Join(all, ";"), ";") + ";"
	return s
}

// steps returns the states after an operation with an answer, none if the answer is impossible.
func (s counterState) steps(op counterOp, a counterAnswer) []counterState {
	after := s
	var want counterAnswer
	switch op.kind {
	case "usage":
		want.used = s.used
	case "adjust":
		after.used = max(0, s.used+op.cost)
		want.used = after.used
	case "consume", "hold":
		if want.allowed = s.used+op.cost <= op.quota; want.allowed {
			after.used += op.cost
			if op.short {
				after = after.with(op.id, "o", 0)
			}
		}
		want.used = after.used
	case "expire":
		if kind, _, _ := s.end(op.id); kind == "o" {
			after.used = max(0, s.used-op.held)
			after = after.with(op.id, "e", 0)
		}
	default:
		if kind, final, ended := s.end(op.id); ended && kind != "o" {
			want.final, want.conflict = final, kind != op.kind[:1]
		} else {
			want.final = op.cost
			after.used = max(0, s.used+op.cost-op.held)
			after = after.with(op.id, op.kind[:1], op.cost)
		}
	}
	if !a.answered {
		return []counterState{s, after}
	}
	if a.allowed != want.allowed || a.used >= 0 && a.used != want.used || a.conflict != want.conflict || !a.conflict && a.final != want.final {
		return nil
	}
	return []counterState{after}
}

// counterModel is a counter that counts each operation once, in one step.
var counterModel = (&porcupine.NondeterministicModel{
	Init: func() []any { return []any{counterState{}} },
	Step: func(state, input, output any) (states []any) {
		for _, s := range state.(counterState).steps(input.(counterOp), output.(counterAnswer)) {
			states = append(states, s)
		}
		return states
	},
	Equal: func(a, b any) bool { return a == b },
}).ToModel()

// The checker accepts a history of a good store, and rejects those of stores with a defect.
func TestCounterModel(t *testing.T) {
	ok := counterAnswer{answered: true, allowed: true, used: -1}
	used := func(n int64) counterAnswer { return counterAnswer{answered: true, used: n} }
	ended := func(final int64) counterAnswer { return counterAnswer{answered: true, used: -1, final: final} }
	hold, settle := counterOp{kind: "hold", cost: 5, quota: 10}, counterOp{kind: "settle", id: "a", held: 5, cost: 2}
	again := settle
	again.cost = 4
	usage := counterOp{kind: "usage"}
	short, expire := counterOp{kind: "hold", cost: 5, quota: 10, id: "a", short: true}, counterOp{kind: "expire", id: "a", held: 5}
	conflict := counterAnswer{answered: true, used: -1, conflict: true}
	for name, test := range map[string]struct {
		history []porcupine.Operation
		want    bool
	}{
		"good":                              {sequence(hold, ok, settle, ended(2), again, ended(2), usage, used(2)), true},
		"settles twice":                     {sequence(hold, ok, settle, ended(2), again, ended(2), usage, used(4)), false},
		"takes the second settlement":       {sequence(hold, ok, settle, ended(2), again, ended(4)), false},
		"forgets a hold":                    {sequence(hold, ok, usage, used(0)), false},
		"settles into another window":       {sequence(hold, ok, settle, ended(2), usage, used(5)), false},
		"settles what was not answered":     {sequence(hold, ok, settle, counterAnswer{}, usage, used(2)), true},
		"leaves what was not answered":      {sequence(hold, ok, settle, counterAnswer{}, usage, used(5)), true},
		"settles half of it":                {sequence(hold, ok, settle, counterAnswer{}, usage, used(3)), false},
		"forgets an answered settlement":    {sequence(hold, ok, settle, ended(2), usage, used(2), usage, used(5)), false},
		"gives a released hold back twice":  {sequence(hold, ok, counterOp{kind: "release", id: "a", held: 5}, ended(0), counterOp{kind: "release", id: "a", held: 5}, ended(0), hold, ok, usage, used(0)), false},
		"expires":                           {sequence(short, ok, expire, ended(0), settle, conflict, usage, used(0)), true},
		"expires after a settlement":        {sequence(short, ok, settle, ended(2), expire, ended(0), usage, used(0)), false},
		"keeps what has expired":            {sequence(short, ok, expire, ended(0), usage, used(5)), false},
		"settles what has expired":          {sequence(short, ok, expire, ended(0), settle, ended(2)), false},
		"refuses what has not expired":      {sequence(short, ok, settle, conflict, expire, ended(0)), false},
		"lets a request over the quota":     {sequence(hold, ok, hold, ok, hold, ok), false},
		"refuses a request under the quota": {sequence(hold, ok, hold, counterAnswer{answered: true, used: -1}), false},
	} {
		if got := porcupine.CheckOperations(counterModel, test.history); got != test.want {
			t.Errorf("%s: got accepted: %t, want %t", name, got, test.want)
		}
	}
}

// sequence returns operations one after the other. Those without an answer may still happen later.
func sequence(pairs ...any) (history []porcupine.Operation) {
	for i := 0; i < len(pairs); i += 2 {
		o := porcupine.Operation{Input: pairs[i], Output: pairs[i+1], Call: int64(i), Return: int64(i + 1)}
		if !pairs[i+1].(counterAnswer).answered {
			o.Return = math.MaxInt64
		}
		history = append(history, o)
	}
	return history
}

// The counters are linearizable, with requests at both doors, holds, settlements, releases, adjustments and reads, while the server is killed and
// its configuration loaded again.
func TestLinearizable(t *testing.T) {
	s := newSite(t, "respond ok")
	p := s.start()
	h := newCounterHistory(t, []*site{s})
	h.run(func() {
		for range 3 {
			time.Sleep(300 * time.Millisecond)
			if _, err := p.end(syscall.SIGKILL); err != nil {
				t.Error(err)
			}
			p = s.start()
			time.Sleep(200 * time.Millisecond)
			s.reload()
		}
	})
	h.check()
}

// The same on two nodes with one Redis, one of which is killed.
func TestLinearizableNodes(t *testing.T) {
	store := redisStore(redistest.Start(t).Addr())
	nodes := []*site{newSiteOn(t, store, "", "respond ok"), newSiteOn(t, store, "", "respond ok")}
	nodes[0].start()
	p := nodes[1].start()
	h := newCounterHistory(t, nodes)
	h.run(func() {
		for range 2 {
			time.Sleep(400 * time.Millisecond)
			if _, err := p.end(syscall.SIGKILL); err != nil {
				t.Error(err)
			}
			time.Sleep(100 * time.Millisecond)
			p = nodes[1].start()
		}
	})
	h.check()
}

// The same on two nodes with a Redis that is replicated: its master is killed, and the replica takes over. Requests wait for the replica.
func TestLinearizableFailover(t *testing.T) {
	n := redistest.StartSentinel(t, "--appendonly", "yes") // otherwise the killed master is empty when it is back, and the store refuses it
	store := "redis " + strings.Join(n.Addrs(), " ") + " {\nsentinel " + n.Name() + "\nwait_replicas 1 5s\n}"
	nodes := []*site{newSiteOn(t, store, "", "respond ok"), newSiteOn(t, store, "", "respond ok")}
	nodes[0].start()
	nodes[1].start()
	h := newCounterHistory(t, nodes)
	h.run(func() {
		time.Sleep(500 * time.Millisecond)
		master := n.Master()
		h.lost = time.Since(h.began)
		master.Kill()
		time.Sleep(20 * time.Millisecond)
		h.away.Store(true)
		n.AwaitFailover(t, master)
		master.Restart()
		n.Await(t)
		nodes[0].awaitReady()
		nodes[1].awaitReady()
		h.away.Store(false)
		time.Sleep(500 * time.Millisecond)
	})
	h.check()
}

// awaitReady waits until the server answers that it counts.
func (s *site) awaitReady() {
	s.t.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) {
		status, b, err := s.call("GET", "/functions/v1/health", nil)
		if err == nil && status == 200 {
			return
		}
		if time.Now().After(deadline) {
			server, _ := os.ReadFile(s.log)
			s.t.Fatalf("health: got %d %s, %v\n%s", status, b, err, server)
		}
	}
}

// reload loads the configuration again.
func (s *site) reload() {
	s.t.Helper()
	s.run(0, "reload", "--force", "--config", s.config, "--address", "localhost:"+s.admin)
}

// maxShort bounds the short holds of a key: each may expire beside many other operations, which the checker has to try in all orders.
const historyKeys, historyQuota, maxShort = 4, 60, 3

// counterHistory records the operations of some clients on the counters of some keys.
type counterHistory struct {
	t       *testing.T
	nodes   []*site
	keys    []struct{ id, secret string }
	began   time.Time
	stopped atomic.Bool
	away    atomic.Bool   // the clients pause: the checker has to try each operation without an answer in all orders
	lost    time.Duration // when a master of Redis was killed; 0 without one

	mu      sync.Mutex
	history [historyKeys][]porcupine.Operation
	holds   [historyKeys][]counterOp // that were opened: id and held
	short   [historyKeys]int         // short holds
}

func newCounterHistory(t *testing.T, nodes []*site) *counterHistory {
	h := &counterHistory{t: t, nodes: nodes, began: time.Now()}
	for range historyKeys {
		id, secret := nodes[0].newKey(historyQuota)
		h.keys = append(h.keys, struct{ id, secret string }{id, secret})
	}
	return h
}

// run runs the clients until disturb has returned.
func (h *counterHistory) run(disturb func()) {
	var clients sync.WaitGroup
	for client := range 6 {
		clients.Go(func() {
			for !h.stopped.Load() {
				if h.away.Load() {
					time.Sleep(10 * time.Millisecond)
					continue
				}
				h.operate(client)
				time.Sleep(time.Duration(rand.IntN(12)) * time.Millisecond)
			}
		})
	}
	disturb()
	h.stopped.Store(true)
	clients.Wait()
	time.Sleep(12 * time.Second) // the server ends expired holds every 10 s
	for k := range h.keys {
		h.expire(k)
		op := counterOp{kind: "usage"}
		call := time.Since(h.began)
		a := h.send(h.nodes[0], k, &op)
		if !a.answered {
			h.t.Errorf("the usage of %s: no answer", h.keys[k].id)
		}
		h.record(k, porcupine.Operation{Input: op, Output: a, Call: int64(call), Return: int64(time.Since(h.began))})
	}
	client.CloseIdleConnections()
}

// record adds an operation on a key to its history.
func (h *counterHistory) record(k int, o porcupine.Operation) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.history[k] = append(h.history[k], o)
}

// expire records the ends of the short holds of a key, which the server has ended by now. A short hold without an answer may be open or not.
func (h *counterHistory) expire(k int) {
	for _, o := range slices.Clone(h.history[k]) {
		op, a := o.Input.(counterOp), o.Output.(counterAnswer)
		if !op.short || a.answered && !a.allowed {
			continue
		}
		expiry := porcupine.Operation{Input: counterOp{kind: "expire", id: op.id, held: op.cost}, Output: counterAnswer{answered: a.answered, used: -1},
			Call: o.Call + int64(999*time.Millisecond), Return: int64(time.Since(h.began))}
		if !a.answered {
			expiry.Return = math.MaxInt64
		}
		h.record(k, expiry)
	}
}

// operate makes an operation, and records it.
func (h *counterHistory) operate(client int) {
	k := rand.IntN(historyKeys)
	op := h.draw(k)
	call := time.Since(h.began)
	a := h.send(h.nodes[rand.IntN(len(h.nodes))], k, &op)
	end := int64(math.MaxInt64)
	if a.answered {
		end = int64(time.Since(h.began))
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if op.kind == "hold" && a.allowed {
		h.holds[k] = append(h.holds[k], counterOp{id: op.id, held: op.cost})
	}
	if op.id == "" {
		op.id = fmt.Sprint("unanswered ", call)
	}
	if a.answered || !a.unsent && op.kind != "usage" { // a read without an answer says nothing
		h.history[k] = append(h.history[k], porcupine.Operation{ClientId: client, Input: op, Output: a, Call: int64(call), Return: end})
	}
}

// draw draws an operation on a key.
func (h *counterHistory) draw(k int) counterOp {
	h.mu.Lock()
	defer h.mu.Unlock()
	op := counterOp{cost: rand.Int64N(4), quota: historyQuota}
	holds := h.holds[k]
	switch n := rand.IntN(10); {
	case n < 5 && len(holds) > 0:
		held := holds[max(0, len(holds)-1-rand.IntN(4))]
		op.kind, op.id, op.held = "settle", held.id, held.held
		if n == 4 {
			op.kind, op.cost = "release", 0
		}
	case n < 7:
		op.kind, op.cost, op.short = "hold", 1+op.cost, h.short[k] < maxShort && rand.IntN(12) == 0
		if op.short {
			h.short[k]++
		}
	case n < 8:
		op.kind, op.cost = "consume", 1
	case n == 8:
		op.kind, op.cost = "adjust", -1-op.cost
	default:
		op.kind, op.cost = "usage", 0
	}
	return op
}

// send makes an operation at a node. It sets the id of a hold.
func (h *counterHistory) send(s *site, k int, op *counterOp) (a counterAnswer) {
	key := h.keys[k]
	a.used = -1
	var status int
	var b []byte
	var err error
	switch op.kind {
	case "consume":
		if rand.IntN(2) == 0 {
			status, _, err = s.send(http.MethodPost, "/x", nil, map[string]string{"X-API-Key": key.secret})
			a.answered, a.unsent, a.allowed = err == nil && (status == 200 || status == 429), unsent(err), status == 200
			return a
		}
		status, b, err = s.call("POST", "/functions/v1/validate", map[string]any{"api_key": key.secret, "endpoint": "/x", "method": "GET"})
	case "hold":
		seconds, end := 3600, "keep"
		if op.short {
			seconds, end = 1, "release"
		}
		status, b, err = s.call("POST", "/functions/v1/validate", map[string]any{"api_key": key.secret, "endpoint": "/x", "method": "GET", "cost": op.cost, "hold_seconds": seconds, "on_expiry": end})
	case "settle":
		status, b, err = s.call("POST", "/functions/v1/holds/"+op.id+"/settle", map[string]any{"costs": map[string]int64{"requests": op.cost}})
	case "release":
		status, b, err = s.call("DELETE", "/functions/v1/holds/"+op.id, nil)
	case "adjust":
		status, b, err = s.call("POST", "/functions/v1/keys/"+key.id+"/usage/adjust", map[string]any{"delta": op.cost, "reason": "a test"})
	default:
		status, b, err = s.call("GET", "/functions/v1/keys/"+key.id+"/usage", nil)
	}
	var answer struct {
		Success bool
		HoldID  string `json:"hold_id"`
		Costs   map[string]int64
		Details struct {
			Used int64 `json:"current_usage"`
		}
		Data struct {
			Used int64 `json:"current_usage"`
		}
	}
	if err != nil || status >= 500 || json.Unmarshal(b, &answer) != nil {
		a.unsent = unsent(err)
		return a
	}
	a.answered = true
	switch op.kind {
	case "consume", "hold":
		a.allowed, a.used, op.id = answer.Success, answer.Details.Used, answer.HoldID
	case "settle", "release":
		a.final, a.conflict = answer.Costs["requests"], status == http.StatusConflict
		if status != 200 && !a.conflict {
			h.t.Errorf("%s: got %d %s", op.kind, status, b)
		}
	case "usage":
		a.used = answer.Data.Used
	}
	return a
}

// unsent reports whether a POST or DELETE has failed because the server did not listen. The client sends neither twice, unless nothing of it was written.
func unsent(err error) bool {
	var dial *net.OpError
	return errors.As(err, &dial) && dial.Op == "dial"
}

// check fails unless the history of each counter is linearizable.
func (h *counterHistory) check() {
	operations, unanswered := 0, 0
	expiries := 0
	for k, history := range h.history {
		if h.lost > 0 { // what a read has shown just before may be lost with the master
			history = slices.DeleteFunc(history, func(o porcupine.Operation) bool {
				reads := o.Input.(counterOp).kind == "usage" || !o.Output.(counterAnswer).allowed && slices.Contains([]string{"consume", "hold"}, o.Input.(counterOp).kind)
				return reads && o.Output.(counterAnswer).answered && o.Return > int64(h.lost-50*time.Millisecond) && o.Call < int64(h.lost)
			})
		}
		switch r := porcupine.CheckOperationsTimeout(counterModel, history, time.Minute); r {
		case porcupine.Ok:
		case porcupine.Unknown:
			h.t.Errorf("the history of %s with %d operations was not checked within a minute", h.keys[k].id, len(history))
		default:
			h.t.Errorf("the history of %s is not linearizable:", h.keys[k].id)
			for _, o := range history {
				h.t.Logf("%d %8d…%8d %+v: %+v", o.ClientId, o.Call/1000, min(o.Return, 1e12)/1000, o.Input, o.Output)
			}
		}
		operations += len(history)
		for _, o := range history {
			if !o.Output.(counterAnswer).answered {
				unanswered++
			} else if o.Input.(counterOp).kind == "expire" {
				expiries++
			}
		}
	}
	h.t.Logf("%d operations, %d of them without an answer, %d short holds that ended", operations, unanswered, expiries)
	if operations < 200 || expiries == 0 {
		h.t.Errorf("got %d operations and %d ends of short holds, want at least 200 and 1", operations, expiries)
	}
}
