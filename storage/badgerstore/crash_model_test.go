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
)

// ask is a request as the tests of crashes make it. It is known by its name, which is
// its endpoint in the history: who asked, and the how manyeth time.
type ask struct {
	name   string
	key    string
	user   int64
	shared bool
	cost   int64
	deny   bool   // it is over the limit
	id     string // "" for none
}

// String and parseAsk are how a process tells another one of a request.
func (a ask) String() string {
	return fmt.Sprintf("%s %s %d %t %d %t %q", a.name, a.key, a.user, a.shared, a.cost, a.deny, a.id)
}

func parseAsk(line string) (a ask, err error) {
	_, err = fmt.Sscanf(line, "%s %s %d %t %d %t %q", &a.name, &a.key, &a.user, &a.shared, &a.cost, &a.deny, &a.id)
	return a, err
}

// consumption returns the request for a store.
func (a ask) consumption(at time.Time) *core.Consumption {
	c := request(a.key, a.user, endless, at)
	c.Shared, c.Cost, c.Entry.Cost, c.Entry.Endpoint, c.RequestID = a.shared, a.cost, a.cost, a.name, a.id
	if a.deny {
		c.Limit = 0
	}
	return c
}

// What became of a request.
type outcome uint8

const (
	unknown  outcome = iota // nobody was told
	allowed                 // it counted
	repeated                // it was answered what one with its id was answered before
	denied
	refused // there was no such key
)

// books know what was asked for and what was answered, and hold that against a store
// that is opened again after a crash.
type books struct {
	mu       sync.Mutex
	frozen   bool // what is noted now has happened after the crash
	expiring bool // entries are removed, and ids forgotten

	asks      map[string]*asked
	histories map[core.CounterID]*historyBook
	ids       map[[2]string]counted // by key and request id
	things    map[string]*thing
	totals    map[string]int64
	problems  []string
}

// asked is a request since the last check.
type asked struct {
	ask
	outcome outcome
	used    int64 // what was answered
	safe    bool  // the answer must be true after a crash
	found   [2]bool
}

// counted is a request with an id that is in a history.
type counted struct {
	name string
	used int64
}

// historyBook is what is known of a counter and its history.
type historyBook struct {
	of      core.CounterID
	entries int64
	gone    int64 // how many of the first are not in the history any more
	partial bool  // some came and went since the check before the last
	used    int64
	days    map[core.Date]core.CounterDay
	order   []string         // the names of all entries
	serials map[string]int64 // the last one of each caller
}

// thing is a user or key that is made, and may be deleted.
type thing struct {
	kind       string
	deleting   bool // that was asked for
	made, gone bool // it was answered
	safe, over bool // that, or that it is gone, must be true after a crash
	seen       bool // it was there at the last check
}

// The kinds of things.
const (
	aUser  = "user"
	aKey   = "key"      // that requests are made with
	idle   = "idle key" // that no request is made with
	aCrowd = "crowd"    // a user with many keys
)

func newBooks() *books {
	b := &books{asks: map[string]*asked{}, histories: map[core.CounterID]*historyBook{}, ids: map[[2]string]counted{},
		things: map[string]*thing{}, totals: map[string]int64{}}
	for n := range worldKeys {
		b.open(ofKey(worldKey(n)))
	}
	for user := int64(1); user <= worldUsers; user++ {
		b.open(ofUser(user))
	}
	return b
}

// open begins the book of a counter.
func (b *books) open(of core.CounterID) *historyBook {
	h := &historyBook{of: of, serials: map[string]int64{}, days: map[core.Date]core.CounterDay{}}
	b.histories[of] = h
	return h
}

// asking notes that something is about to be asked for: a request, or that a thing is
// made or deleted.
func (b *books) asking(a ask) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.asks[a.name] = &asked{ask: a}
	b.totals["asked"]++
}

// answered notes what a request was answered.
func (b *books) answered(name string, o outcome, used int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.frozen {
		return
	}
	a := b.asks[name]
	a.outcome, a.used = o, used
	b.totals["answered"]++
}

// making and deleting note that a thing is about to be made or deleted, made and deleted
// that it was.
func (b *books) making(kind, name string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.things[name] = &thing{kind: kind}
	if kind == aKey {
		b.open(ofKey(name))
	}
}

func (b *books) made(name string)     { b.change(name, true, func(x *thing) { x.made = true }) }
func (b *books) deleting(name string) { b.change(name, false, func(x *thing) { x.deleting = true }) }
func (b *books) deleted(name string)  { b.change(name, true, func(x *thing) { x.gone = true }) }

func (b *books) change(name string, answer bool, fn func(*thing)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if x := b.things[name]; x != nil && (!answer || !b.frozen) {
		fn(x)
		b.totals["changes"] += int64(boolToInt(answer))
	}
}

// answers returns what was answered so far, to be made safe later.
func (b *books) answers() (safe func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	var asks []*asked
	for _, a := range b.asks {
		if a.outcome != unknown {
			asks = append(asks, a)
		}
	}
	var made, gone []*thing
	for _, x := range b.things {
		if x.made {
			made = append(made, x)
		}
		if x.gone {
			gone = append(gone, x)
		}
	}
	return func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		if b.frozen {
			return
		}
		for _, a := range asks {
			a.safe = true
		}
		for _, x := range made {
			x.safe = true
		}
		for _, x := range gone {
			x.over = true
		}
	}
}

// freeze notes that this is the moment of the crash. If all is safe, everything that was
// answered must be true afterwards.
func (b *books) freeze(all bool) {
	if all {
		b.answers()()
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.frozen = true
}

// thaw ends that.
func (b *books) thaw() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.frozen = false
}

// problem notes what is wrong. It begins with what kind of problem that is.
func (b *books) problem(format string, args ...any) {
	b.problems = append(b.problems, fmt.Sprintf(format, args...))
}

// check holds a store against the books and returns what is wrong. What it has found is
// taken for granted from then on, what it has not found is forgotten.
func (b *books) check(s *Store) []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.problems, b.frozen = nil, false
	b.checkThings(s)
	for _, of := range b.inOrder() {
		b.checkHistory(s, b.histories[of])
	}
	for _, a := range b.asks {
		b.checkAsked(a)
	}
	clear(b.asks)
	if b.expiring {
		clear(b.ids)
	}
	return b.problems
}

func (b *books) inOrder() []core.CounterID {
	list := make([]core.CounterID, 0, len(b.histories))
	for of := range b.histories {
		list = append(list, of)
	}
	slices.SortFunc(list, func(x, y core.CounterID) int {
		return cmp.Or(cmp.Compare(x.KeyID, y.KeyID), cmp.Compare(x.UserID, y.UserID))
	})
	return list
}

// checkHistory looks at what came to a history, entry by entry: each was asked for and
// is there once, and the counter is their sum. Whoever was answered how much was used
// was told the sum up to his own.
func (b *books) checkHistory(s *Store, h *historyBook) {
	t, err := s.stateOf(h.of)
	if err != nil {
		b.problem("error: counter of %v: %v", h.of, err)
		return
	}
	fresh, before := t.entries-h.entries, h.used
	if fresh < 0 {
		b.problem("lost: history of %v: got %d entries, there were %d", h.of, t.entries, h.entries)
		return
	}
	list, total, err := s.History(context.Background(), h.of, time.Time{}, core.Page{Number: 1, Size: int(max(fresh, 1))})
	gone := t.entries - int64(total)
	if err != nil || gone < h.gone || gone > h.gone && !b.expiring {
		b.problem("lost: history of %v: got %d of %d entries, %v, want all but %d", h.of, total, t.entries, err, h.gone)
		return
	}
	h.gone, h.partial = gone, int64(len(list)) < fresh
	for _, e := range slices.Backward(list[:min(fresh, int64(len(list)))]) {
		b.checkEntry(h, &e)
	}
	used := t.Windows[core.Year].Used
	if !h.partial && used != h.used {
		b.problem("wrong: counter of %v: got %d used, its history has %d", h.of, used, h.used)
	}
	if least, most := b.bounds(h); used-before < least || used-before > most {
		b.problem("wrong: counter of %v: got %d used more, want %d to %d", h.of, used-before, least, most)
	}
	b.checkDays(s, h)
	if h.of.KeyID == "" {
		b.totals["counted"] += fresh
	}
	h.entries, h.used = t.entries, used
}

// checkDays looks at the days of a counter: they are the sums of its history, and beside
// that of denials that were left out of it.
func (b *books) checkDays(s *Store, h *historyBook) {
	list, err := s.CounterDays(context.Background(), h.of)
	if err != nil {
		b.problem("error: days of %v: %v", h.of, err)
		return
	}
	got := map[core.Date]core.CounterDay{}
	for _, day := range list {
		got[day.Date] = day
	}
	for date := range h.days {
		if _, ok := got[date]; !ok {
			got[date] = core.CounterDay{Date: date}
		}
	}
	for date, got := range got {
		if want := h.days[date]; !h.partial && (got.Allowed != want.Allowed || got.Shared.Allowed != want.Shared.Allowed ||
			got.Denied < want.Denied || got.Shared.Denied < want.Shared.Denied) {
			b.problem("wrong: day of %v: got %+v, its history has %+v", h.of, got, want)
		}
	}
	h.days = got
}

// checkEntry looks at an entry.
func (b *books) checkEntry(h *historyBook, e *core.Entry) {
	h.order = append(h.order, e.Endpoint)
	a := b.asks[e.Endpoint]
	if a == nil {
		b.problem("wrong: history of %v: %s was not asked, or is there twice", h.of, e.Endpoint)
		return
	}
	found := &a.found[boolToInt(h.of.KeyID == "")]
	if *found {
		b.problem("wrong: history of %v: %s is there twice", h.of, a.name)
	}
	*found = true
	if e.KeyID != a.key || e.UserID != a.user || e.Cost != a.cost || e.Denied != a.deny {
		b.problem("wrong: history of %v: got %+v, want %+v", h.of, *e, a.ask)
	}
	caller, serial := a.caller()
	if serial <= h.serials[caller] {
		b.problem("wrong: history of %v: %s comes after %d", h.of, a.name, h.serials[caller])
	}
	h.serials[caller] = serial
	h.addDay(e, a.shared)
	if e.Denied || h.of.KeyID == "" && !a.shared {
		return
	}
	h.used += a.cost
	if a.shared == (h.of.KeyID == "") {
		b.checkAnswer(h, a)
	}
}

// addDay adds an entry to the days.
func (h *historyBook) addDay(e *core.Entry, shared bool) {
	traffic := core.Traffic{Allowed: e.Cost}
	if e.Denied {
		traffic = core.Traffic{Denied: e.Cost}
	}
	day := h.days[core.DateOf(e.At)]
	day.Date = core.DateOf(e.At)
	day.Traffic = day.Plus(traffic)
	if shared && h.of.KeyID == "" {
		day.Shared = day.Shared.Plus(traffic)
	}
	h.days[day.Date] = day
}

// caller returns who made a request, and the how manyeth of his it is.
func (a ask) caller() (string, int64) {
	i := strings.LastIndexByte(a.name, '/')
	serial, _ := strconv.ParseInt(a.name[i+1:], 10, 64)
	return a.name[:i], serial
}

// checkAnswer looks at what was answered to a request that the counter of a history has
// decided.
func (b *books) checkAnswer(h *historyBook, a *asked) {
	if a.outcome == allowed && !h.partial && a.used != h.used {
		b.problem("wrong: %s was answered that %d is used, counted are %d", a.name, a.used, h.used)
	}
	if a.outcome == repeated || a.outcome == refused {
		b.problem("wrong: %v is counted, and was answered as %d", a.ask, a.outcome)
	}
	if a.id == "" {
		return
	}
	id := [2]string{a.key, a.id}
	if first, ok := b.ids[id]; ok {
		b.problem("wrong: request %q of %s is counted as %s and as %s", a.id, a.key, first.name, a.name)
	}
	b.ids[id] = counted{a.name, h.used}
}

// bounds returns how much a counter must have been used by since the last check, and how
// much it can have been.
func (b *books) bounds(h *historyBook) (least, most int64) {
	for _, a := range b.asks {
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

// checkAsked looks at a request that was asked since the last check.
func (b *books) checkAsked(a *asked) {
	key, user := b.histories[ofKey(a.key)], b.histories[ofUser(a.user)]
	counts := a.safe && a.outcome == allowed
	switch {
	case counts && key != nil && !key.partial && !a.found[0]:
		b.problem("lost: %v is not in the history of its key", a.ask)
	case counts && !user.partial && !a.found[1]:
		b.problem("lost: %v is not in the history of its user", a.ask)
	case key != nil && a.found[0] != a.found[1]:
		b.problem("wrong: %v is in the history of only one of key and user", a.ask)
	case a.outcome == refused && (a.found[0] || a.found[1]):
		b.problem("wrong: %v is counted, and was refused", a.ask)
	}
	if a.id == "" || key == nil || !a.safe || a.outcome != allowed && a.outcome != repeated {
		return
	}
	if first, ok := b.ids[[2]string{a.key, a.id}]; !ok || first.used != a.used {
		b.problem("lost: request %q of %s was answered that %d is used, got %+v, %v", a.id, a.key, a.used, first, ok)
	}
}
