package badgerstore

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/record"
)

// testRequest is a request of the crash tests. Its name is unique, and is its endpoint in the history: the caller, and
// the caller's serial number.
type testRequest struct {
	name   string
	key    string
	user   int64
	shared bool
	cost   int64
	deny   bool   // the request is over the limit
	id     string // the request id, "" without one
}

// String encodes a request for the output of a victim process. parseRequest decodes it.
func (a testRequest) String() string {
	return fmt.Sprintf("%s %s %d %t %d %t %q", a.name, a.key, a.user, a.shared, a.cost, a.deny, a.id)
}

func parseRequest(line string) (a testRequest, err error) {
	_, err = fmt.Sscanf(line, "%s %s %d %t %d %t %q", &a.name, &a.key, &a.user, &a.shared, &a.cost, &a.deny, &a.id)
	return a, err
}

// consumption returns the request for a store.
func (a testRequest) consumption(at time.Time) *core.Consumption {
	c := request(a.key, a.user, endless, at)
	c.Shared, c.Cost, c.Entry.Cost, c.Entry.Endpoint, c.RequestID = a.shared, a.cost, a.cost, a.name, a.id
	c.Costs = []core.MeterCost{{Meter: "spend", Cost: a.cost}, {Meter: "tokens", Cost: 2 * a.cost}}
	c.Entry.Costs = c.Costs
	switch {
	case a.deny && a.shared:
		c.Further = []core.Limit{{Meter: "tokens", Max: 1, Period: core.Year}}
	case a.deny:
		c.Limit = 0
	}
	return c
}

// sameOnAllMeters reports whether a counter has counted each request on all meters: see consumption.
func sameOnAllMeters(c *core.Counter) bool {
	var spend, tokens core.PeriodUsage
	if c.At > 0 && c.Meters != nil {
		spend, tokens = *c.Meter("spend"), *c.Meter("tokens")
	}
	for p, used := range c.Requests {
		if spend[p] != used || tokens[p] != 2*used {
			return false
		}
	}
	return true
}

// outcome is the answer to a request.
type outcome uint8

const (
	unknown  outcome = iota // the request was not answered
	allowed                 // the request counted
	repeated                // the answer was the first answer to the same request id
	denied
	refused // the key did not exist
)

// model records requests and changes with their answers, and compares them with a store that was opened after a crash.
type model struct {
	mu       sync.Mutex
	crashed  bool // answers from now on come after the crash, and are ignored
	expiring bool // entries and request ids expire in this round

	requests  map[string]*requestState
	histories map[core.CounterID]*historyModel
	ids       map[[2]string]countedRequest // by key and request id
	resources map[string]*changed
	totals    map[string]int64
	problems  []string
}

// requestState is a request since the last check.
type requestState struct {
	testRequest
	outcome outcome
	used    int64   // the usage in the answer
	safe    bool    // the answer must survive the crash
	found   [2]bool // the request is in the history of its key, of its user
}

// countedRequest is a counted request with a request id.
type countedRequest struct {
	name string
	used int64
}

// historyModel is the expected state of a counter and its history.
type historyModel struct {
	of      core.CounterID
	entries int64
	gone    int64 // number of oldest entries that were removed from the history
	partial bool  // entries were added and removed again between two checks
	used    int64
	days    record.Days      // and hours
	order   []string         // the names of all entries
	serials map[string]int64 // the last serial number of each caller
}

// changed is a user or key that a test creates, and may delete.
type changed struct {
	kind                     string
	deleting                 bool // the deletion was requested
	created, deleted         bool // the creation or deletion was answered
	createdSafe, deletedSafe bool // the creation or deletion must survive the crash
	seen                     bool // the resource existed at the last check
}

// The kinds of resources.
const (
	userResource = "user"
	usedKey      = "key"      // a key with requests
	idleKey      = "idle key" // a key without requests
	crowdUser    = "crowd"    // a user with many keys
)

func newModel() *model {
	b := &model{requests: map[string]*requestState{}, histories: map[core.CounterID]*historyModel{}, ids: map[[2]string]countedRequest{},
		resources: map[string]*changed{}, totals: map[string]int64{}}
	for n := range fixtureKeys {
		b.addHistory(ofKey(fixtureKey(n)))
	}
	for user := int64(1); user <= fixtureUsers; user++ {
		b.addHistory(ofUser(user))
	}
	return b
}

// addHistory adds the history of a counter to the model.
func (m *model) addHistory(of core.CounterID) *historyModel {
	h := &historyModel{of: of, serials: map[string]int64{}, days: record.Days{}}
	m.histories[of] = h
	return h
}

// requesting records a request before it is sent.
func (m *model) requesting(a testRequest) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.requests[a.name] = &requestState{testRequest: a}
	m.totals["sent"]++
}

// answered records the answer to a request.
func (m *model) answered(name string, o outcome, used int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.crashed {
		return
	}
	a := m.requests[name]
	a.outcome, a.used = o, used
	m.totals["answered"]++
}

// creating and deleting record a change of a resource before it is sent; created and deleted record its answer.
func (m *model) creating(kind, name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.resources[name] = &changed{kind: kind}
	if kind == usedKey {
		m.addHistory(ofKey(name))
	}
}

func (m *model) created(name string)  { m.change(name, true, func(x *changed) { x.created = true }) }
func (m *model) deleting(name string) { m.change(name, false, func(x *changed) { x.deleting = true }) }
func (m *model) deleted(name string)  { m.change(name, true, func(x *changed) { x.deleted = true }) }

func (m *model) change(name string, answer bool, fn func(*changed)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if x := m.resources[name]; x != nil && (!answer || !m.crashed) {
		fn(x)
		m.totals["changes"] += int64(boolToInt(answer))
	}
}

// snapshotAnswers takes a snapshot of the answers so far. The result marks these answers as safe.
func (m *model) snapshotAnswers() (safe func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var answeredRequests []*requestState
	for _, a := range m.requests {
		if a.outcome != unknown {
			answeredRequests = append(answeredRequests, a)
		}
	}
	var made, gone []*changed
	for _, x := range m.resources {
		if x.created {
			made = append(made, x)
		}
		if x.deleted {
			gone = append(gone, x)
		}
	}
	return func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		if m.crashed {
			return
		}
		for _, a := range answeredRequests {
			a.safe = true
		}
		for _, x := range made {
			x.createdSafe = true
		}
		for _, x := range gone {
			x.deletedSafe = true
		}
	}
}

// crash marks the moment of the crash. With all, every answer so far must survive.
func (m *model) crash(all bool) {
	if all {
		m.snapshotAnswers()()
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.crashed = true
}

// restart ends the state after crash: answers are recorded again.
func (m *model) restart() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.crashed = false
}

// problem records a difference. The text begins with the kind of problem: lost, wrong or error.
func (m *model) problem(format string, args ...any) {
	m.problems = append(m.problems, fmt.Sprintf(format, args...))
}

// check compares a store with the model and returns the differences. From then on, the model expects exactly the data
// that the store has.
func (m *model) check(s *Store) []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.problems, m.crashed = nil, false
	m.checkResources(s)
	for _, of := range m.inOrder() {
		m.checkHistory(s, m.histories[of])
	}
	for _, a := range m.requests {
		m.checkRequest(a)
	}
	clear(m.requests)
	if m.expiring {
		clear(m.ids)
	}
	return m.problems
}

func (m *model) inOrder() []core.CounterID {
	list := make([]core.CounterID, 0, len(m.histories))
	for of := range m.histories {
		list = append(list, of)
	}
	slices.SortFunc(list, func(x, y core.CounterID) int {
		return cmp.Or(cmp.Compare(x.KeyID, y.KeyID), cmp.Compare(x.UserID, y.UserID))
	})
	return list
}

// checkHistory checks the new entries of a history. Each entry was requested and occurs once, the counter is the sum of
// the entries, and the usage in each answer is the sum up to its entry.
func (m *model) checkHistory(s *Store, h *historyModel) {
	states, err := s.states([]core.CounterID{h.of})
	if err != nil {
		m.problem("error: counter of %v: %v", h.of, err)
		return
	}
	t := states[0]
	added, before := t.entries-h.entries, h.used
	if added < 0 {
		m.problem("lost: history of %v: got %d entries, there were %d", h.of, t.entries, h.entries)
		return
	}
	list, total, err := s.History(context.Background(), h.of, time.Time{}, core.Page{Number: 1, Size: int(max(added, 1))})
	gone := t.entries - int64(total)
	if err != nil || gone < h.gone || gone > h.gone && !m.expiring {
		m.problem("lost: history of %v: got %d of %d entries, %v, want all but %d", h.of, total, t.entries, err, h.gone)
		return
	}
	h.gone, h.partial = gone, int64(len(list)) < added
	for _, e := range slices.Backward(list[:min(added, int64(len(list)))]) {
		m.checkEntry(h, &e)
	}
	if !sameOnAllMeters(&t.Counter) {
		m.problem("wrong: counter of %v: got %v requests, %+v on the other meters", h.of, t.Requests, t.Meters)
	}
	used := t.Requests[core.Year]
	if !h.partial && used != h.used {
		m.problem("wrong: counter of %v: got %d used, its history has %d", h.of, used, h.used)
	}
	if least, most := m.bounds(h); used-before < least || used-before > most {
		m.problem("wrong: counter of %v: got %d used more, want %d to %d", h.of, used-before, least, most)
	}
	m.checkDays(s, h)
	if h.of.KeyID == "" {
		m.totals["counted"] += added
	}
	h.entries, h.used = t.entries, used
}

// checkDays checks the days and hours of a counter: they are the sums of the history, plus the denials that the history omits.
func (m *model) checkDays(s *Store, h *historyModel) {
	list, err := s.CounterDays(context.Background(), h.of)
	if err != nil {
		m.problem("error: days of %v: %v", h.of, err)
		return
	}
	got := record.Days{}
	for _, day := range list {
		got[day.Date] = &day
	}
	for date := range h.days {
		_ = got.Number(date, 0) // adds a missing one
	}
	for date, got := range got {
		_ = h.days.Number(date, 0)
		for _, shared := range []bool{false, true} {
			got, want := new(got.Totals(shared)).Of(core.MeterRequests), new(h.days[date].Totals(shared)).Of(core.MeterRequests)
			if !h.partial && (got.Allowed != want.Allowed || got.Denied < want.Denied) {
				m.problem("wrong: %v of %v, shared=%t: got %+v, its history has %+v", date, h.of, shared, got, want)
			}
		}
	}
	h.days = got
}

// checkEntry checks a new entry of a history.
func (m *model) checkEntry(h *historyModel, e *core.Entry) {
	h.order = append(h.order, e.Endpoint)
	a := m.requests[e.Endpoint]
	if a == nil {
		m.problem("wrong: history of %v: %s was not requested, or occurs twice", h.of, e.Endpoint)
		return
	}
	found := &a.found[boolToInt(h.of.KeyID == "")]
	if *found {
		m.problem("wrong: history of %v: %s occurs twice", h.of, a.name)
	}
	*found = true
	if e.KeyID != a.key || e.UserID != a.user || e.Cost != a.cost || e.Denied != a.deny {
		m.problem("wrong: history of %v: got %+v, want %+v", h.of, *e, a.testRequest)
	}
	caller, serial := a.caller()
	if serial <= h.serials[caller] {
		m.problem("wrong: history of %v: %s comes after %d", h.of, a.name, h.serials[caller])
	}
	h.serials[caller] = serial
	h.addDay(e, a.shared)
	if e.Denied || h.of.KeyID == "" && !a.shared {
		return
	}
	h.used += a.cost
	if a.shared == (h.of.KeyID == "") {
		m.checkAnswer(h, a)
	}
}

// addDay adds an entry to the days and hours.
func (h *historyModel) addDay(e *core.Entry, shared bool) {
	number := record.DayAllowed
	if e.Denied {
		number = record.DayDenied
	}
	numbers := []int{number}
	if shared && h.of.KeyID == "" {
		numbers = append(numbers, record.SharedNumber(number))
	}
	for _, n := range numbers {
		*h.days.Number(core.DateOf(e.At), n) += e.Cost
		*h.days.MeterNumber(core.HourOf(e.At), core.MeterRequests, n) += e.Cost
	}
}

// caller returns the caller of a request and its serial number.
func (a testRequest) caller() (string, int64) {
	i := strings.LastIndexByte(a.name, '/')
	serial, _ := strconv.ParseInt(a.name[i+1:], 10, 64)
	return a.name[:i], serial
}

// checkAnswer checks the answer to a request that the counter of h has decided.
func (m *model) checkAnswer(h *historyModel, a *requestState) {
	if a.outcome == allowed && !h.partial && a.used != h.used {
		m.problem("wrong: %s was answered %d used, want %d", a.name, a.used, h.used)
	}
	if a.outcome == repeated || a.outcome == refused {
		m.problem("wrong: %v is counted, but was answered with outcome %d", a.testRequest, a.outcome)
	}
	if a.id == "" {
		return
	}
	id := [2]string{a.key, a.id}
	if first, ok := m.ids[id]; ok {
		m.problem("wrong: request id %q of %s is counted twice, as %s and as %s", a.id, a.key, first.name, a.name)
	}
	m.ids[id] = countedRequest{a.name, h.used}
}

// bounds returns the least and the most that the usage of a counter can have grown since the last check.
func (m *model) bounds(h *historyModel) (least, most int64) {
	for _, a := range m.requests {
		if a.deny || h.of.KeyID != "" && a.key != h.of.KeyID || h.of.KeyID == "" && (a.user != h.of.UserID || !a.shared) {
			continue
		}
		most += a.cost
		if a.safe && a.outcome == allowed {
			least += a.cost
		}
	}
	return least, most
}

// checkRequest checks that a request since the last check is in the histories of its key and user.
func (m *model) checkRequest(a *requestState) {
	key, user := m.histories[ofKey(a.key)], m.histories[ofUser(a.user)]
	counts := a.safe && a.outcome == allowed
	switch {
	case counts && key != nil && !key.partial && !a.found[0]:
		m.problem("lost: %v is not in the history of its key", a.testRequest)
	case counts && !user.partial && !a.found[1]:
		m.problem("lost: %v is not in the history of its user", a.testRequest)
	case key != nil && a.found[0] != a.found[1]:
		m.problem("wrong: %v is in only one of the histories of its key and its user", a.testRequest)
	case a.outcome == refused && (a.found[0] || a.found[1]):
		m.problem("wrong: %v is counted, but was refused", a.testRequest)
	}
	if a.id == "" || key == nil || !a.safe || a.outcome != allowed && a.outcome != repeated {
		return
	}
	if first, ok := m.ids[[2]string{a.key, a.id}]; !ok || first.used != a.used {
		m.problem("lost: request id %q of %s was answered %d used, got %+v, %v", a.id, a.key, a.used, first, ok)
	}
}
