package archive

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/memstore"
)

// noon is the first time in each world. Its nanoseconds have nine digits.
var noon = time.Date(2026, time.March, 12, 12, 0, 0, 123456789, time.UTC)

// forever is a retention within which nothing expires.
const forever = 200 * 365 * 24 * time.Hour

// small returns options with small pages, so that each list has many.
func small() ImportOptions {
	return ImportOptions{Retention: forever, page: 3, entryPage: 4, now: func() time.Time { return noon }}
}

// exporting returns the options of an export with small pages.
func exporting() ExportOptions { return ExportOptions{Source: "test", page: 3, entryPage: 4} }

// world fills a store at random: accounts with revoked owner's keys, users with an email or an external id, deleted users,
// regenerated, moved and deleted keys, a clock that steps back, denied requests, and more denied requests than the
// history records.
type world struct {
	t     testing.TB
	s     core.Store
	r     *rand.Rand
	now   time.Time
	n     int
	acct  string
	users []*core.User
	plans []*core.Plan
	keys  []*core.Key
}

// newWorld fills a store with so many steps in each of two accounts.
func newWorld(t testing.TB, s core.Store, seed uint64, steps int) {
	t.Helper()
	w := &world{t: t, s: s, r: rand.New(rand.NewPCG(seed, 1)), now: noon}
	for i := range 2 {
		w.acct, w.users, w.plans, w.keys = fmt.Sprintf("acct_%d", i), nil, nil, nil
		w.account(fmt.Sprintf("Acme & Söhne %d", i))
		for range steps {
			w.step()
		}
	}
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// pick returns one of several things.
func pick[T any](r *rand.Rand, list []T) T { return list[r.IntN(len(list))] }

func (w *world) name(prefix string) string {
	w.n++
	return fmt.Sprintf("%s%d", prefix, w.n)
}

func (w *world) account(name string) {
	w.t.Helper()
	ctx := context.Background()
	owner := func(id string) *core.OwnerKey {
		return &core.OwnerKey{ID: w.acct + id, AccountID: w.acct, Name: id, Digest: core.DigestOf(w.acct + id), Hint: "lk_…" + id, CreatedAt: w.now}
	}
	w.must(w.s.CreateAccount(ctx, &core.Account{ID: w.acct, Name: name, CreatedAt: w.now}, owner("okey_1")))
	expires := owner("okey_3")
	expires.ExpiresAt = new(w.now.Add(time.Hour))
	for _, k := range []*core.OwnerKey{owner("okey_2"), expires, owner("okey_4"), owner("okey_5")} {
		w.must(w.s.CreateOwnerKey(ctx, k))
	}
	w.revoke("okey_2")
	_, err := w.s.UpdateAccess(ctx, w.acct, func(ac *core.Access) error {
		ac.Password = "hash of " + name
		ac.Links = []core.SignInLink{{Digest: core.DigestOf("link"), ExpiresAt: w.now}}
		ac.Sessions = []core.Session{{Digest: core.DigestOf("session"), CreatedAt: w.now, SeenAt: w.now}}
		return nil
	})
	w.must(err)
	for range 4 {
		w.newPlan()
		w.newUser()
		w.newKey()
	}
}

func (w *world) revoke(id string) {
	_, err := w.s.UpdateOwnerKey(context.Background(), w.acct, w.acct+id, func(k *core.OwnerKey) error {
		k.RevokedAt = new(w.now)
		return nil
	})
	w.must(err)
}

// newPrefix gives the account another prefix of keys.
func (w *world) newPrefix() {
	w.t.Helper()
	_, err := w.s.UpdateAccount(context.Background(), w.acct, func(a *core.Account) error {
		a.KeyPrefix = w.name("prefix") + "_"
		a.KeyPrefixes = append(a.KeyPrefixes, a.KeyPrefix)
		return nil
	})
	w.must(err)
}

func (w *world) update(fn func(core.Tx) error) {
	w.t.Helper()
	w.must(w.s.Update(context.Background(), w.acct, fn))
}

// step does something, mostly a request.
func (w *world) step() {
	w.now = w.now.Add(time.Duration(w.r.IntN(3)) * time.Second)
	switch w.r.IntN(63) {
	case 62, 61:
		w.adjust()
	case 60:
		w.newPrefix()
	case 0:
		w.now = w.now.Add(-time.Duration(w.r.IntN(48)) * time.Hour)
	case 1:
		w.now = w.now.Add(time.Duration(w.r.IntN(40*24)) * time.Hour)
	case 2, 3:
		w.newUser()
	case 4, 5, 6:
		w.newKey()
	case 7:
		w.newPlan()
	case 8, 9:
		w.deleteKey()
	case 10:
		w.deleteUser()
	case 11, 12, 13, 14, 15, 16:
		w.moveKey()
	case 17:
		w.changeKey()
	case 18:
		w.changeUser()
	case 19:
		w.flood()
	case 20:
		w.deletePlan()
	default:
		w.request()
	}
}

func (w *world) newPlan() {
	p := &core.Plan{AccountID: w.acct, ID: w.name("plan_"), Name: w.name("Plan "), Limit: int64(5 + w.r.IntN(100)),
		Period: pick(w.r, core.PlanPeriods()), Inactive: w.r.IntN(5) == 0, CreatedAt: w.now, UpdatedAt: w.now}
	if w.r.IntN(2) == 0 {
		p.Description, p.Features = new("what it is <for>"), []string{"a", "", "b & c"}
	}
	if w.r.IntN(2) == 0 {
		p.Limits = []core.Limit{{Meter: "tokens", Max: 1000, Period: core.Month}}
		p.Rate = &core.Rate{Requests: 2, Per: core.PerSecond, Burst: 3}
	}
	w.update(func(tx core.Tx) error { p.Seq = 0; return tx.PutPlan(p) })
	w.plans = append(w.plans, p)
}

// deletePlan deletes a plan that was just made.
func (w *world) deletePlan() {
	w.newPlan()
	last := w.plans[len(w.plans)-1]
	w.plans = w.plans[:len(w.plans)-1]
	w.update(func(tx core.Tx) error { return tx.DeletePlan(last.ID) })
}

func (w *world) newUser() {
	u := &core.User{AccountID: w.acct, Name: w.name("Bobby "), Disabled: w.r.IntN(4) == 0, CreatedAt: w.now, UpdatedAt: w.now}
	u.PlanID = pick(w.r, w.plans).ID
	if w.r.IntN(2) == 0 {
		u.Email = new(w.name("Bobby") + "@example.com")
		u.Metadata = json.RawMessage(`{"a":"<&>","n":1.50,"b":{"z":null}}`)
	} else {
		u.ExternalID = w.name("cus_Ä")
	}
	if w.r.IntN(3) == 0 {
		u.Anchors = core.Anchors{{Start: w.now.Add(-time.Duration(w.r.IntN(90*24)) * time.Hour).Truncate(time.Second)}}
	}
	w.update(func(tx core.Tx) error { u.ID = 0; return tx.PutUser(u) })
	w.users = append(w.users, u)
}

func (w *world) newKey() {
	id := w.name("key_")
	k := &core.Key{AccountID: w.acct, ID: id, Name: w.name("Key "), UserID: pick(w.r, w.users).ID, Status: core.KeyActive,
		Digest: core.DigestOf(id), Hint: "lk_user_…" + id, CreatedAt: w.now, UpdatedAt: w.now}
	if w.r.IntN(2) == 0 {
		k.PlanID = pick(w.r, w.plans).ID
	}
	w.update(func(tx core.Tx) error { k.Seq = 0; return tx.PutKey(k) })
	w.keys = append(w.keys, k)
}

func (w *world) deleteKey() {
	if len(w.keys) < 3 {
		return
	}
	i := w.r.IntN(len(w.keys))
	id := w.keys[i].ID
	w.keys = slices.Delete(w.keys, i, i+1)
	w.update(func(tx core.Tx) error { return tx.DeleteKey(id) })
}

// deleteUser deletes a user and its keys. Some keys move to another user before.
func (w *world) deleteUser() {
	if len(w.users) < 3 {
		return
	}
	i := w.r.IntN(len(w.users))
	id := w.users[i].ID
	w.users = slices.Delete(w.users, i, i+1)
	for _, k := range w.keys {
		if k.UserID == id && w.r.IntN(3) > 0 {
			w.put(k, pick(w.r, w.users).ID)
		}
	}
	w.keys = slices.DeleteFunc(w.keys, func(k *core.Key) bool { return k.UserID == id })
	w.update(func(tx core.Tx) error { return tx.DeleteUser(id) })
	if len(w.keys) == 0 {
		w.newKey()
	}
}

func (w *world) moveKey() { w.put(pick(w.r, w.keys), pick(w.r, w.users).ID) }

func (w *world) put(k *core.Key, user int64) {
	k.UserID, k.UpdatedAt = user, w.after(k.UpdatedAt)
	w.update(func(tx core.Tx) error { return tx.PutKey(k) })
}

// after returns the time now, or a moment after one that it has not reached, as core does.
func (w *world) after(t time.Time) time.Time {
	if w.now.After(t) {
		return w.now
	}
	return t.Add(time.Millisecond)
}

func (w *world) changeKey() {
	k := pick(w.r, w.keys)
	k.Previous = append(k.Previous, core.GraceValue{Digest: k.Digest, Until: w.now.Add(time.Hour)})
	k.Digest, k.ExpiresAt, k.Metadata = core.DigestOf(w.name(k.ID)), new(w.now.Add(24*time.Hour)), json.RawMessage(`{"k":[]}`)
	k.Status = pick(w.r, []core.KeyStatus{core.KeyActive, core.KeyInactive})
	w.put(k, k.UserID)
}

func (w *world) changeUser() {
	u := pick(w.r, w.users)
	u.Email, u.ExternalID, u.UpdatedAt = nil, w.name("cus_ä"), w.after(u.UpdatedAt)
	w.update(func(tx core.Tx) error { return tx.PutUser(u) })
}

// consumption is a request of a key.
func (w *world) consumption(k *core.Key) *core.Consumption {
	cost := int64(1 + w.r.IntN(3))
	c := &core.Consumption{Account: w.acct, KeyID: k.ID, KeySeq: k.Seq, UserID: k.UserID, Shared: k.PlanID == "", Cost: cost, Retention: forever,
		Terms: core.Terms{PlanID: "p", PlanName: "P", Period: pick(w.r, core.PlanPeriods()), Limit: int64(w.r.IntN(200))},
		Entry: core.Entry{At: w.now, KeyID: k.ID, UserID: k.UserID, Endpoint: w.name("/"), Method: "GET", IP: "192.0.2.1", Cost: cost}}
	if w.r.IntN(4) == 0 { // the same as others
		c.Entry.Endpoint = "/again"
	}
	if w.r.IntN(4) == 0 {
		c.RequestID = w.name("id ")
	}
	if w.r.IntN(4) == 0 {
		c.Costs = []core.MeterCost{{Meter: "spend", Cost: 1}, {Meter: "tokens", Cost: int64(1 + w.r.IntN(9))}}
		c.Entry.Costs = c.Costs
	}
	if w.r.IntN(9) == 0 {
		c.Refused = core.ReasonDisabled
	}
	for _, u := range w.users {
		if u.ID == k.UserID {
			c.Anchors = u.Anchors
		}
	}
	return c
}

// adjust changes the usage of a key by hand.
func (w *world) adjust() {
	c := w.consumption(pick(w.r, w.keys))
	c.Refused, c.Cost, c.Costs, c.Entry.Cost, c.Entry.Costs, c.RequestID = "", 0, nil, 0, nil, ""
	c.Adjustment = &core.Adjustment{Meter: pick(w.r, []string{"requests", "tokens"}), Value: int64(w.r.IntN(40)), Reason: "a <gift>"}
	if w.r.IntN(2) == 0 {
		c.Adjustment.Set, c.Adjustment.Period = true, pick(w.r, core.Periods())
	}
	c.Entry.Adjustment = c.Adjustment
	_, err := w.s.Consume(context.Background(), c)
	w.must(err)
}

func (w *world) request() {
	for range 1 + w.r.IntN(4) {
		_, err := w.s.Consume(context.Background(), w.consumption(pick(w.r, w.keys)))
		w.must(err)
	}
}

// flood makes more requests in a second than are recorded when they are denied.
func (w *world) flood() {
	k := pick(w.r, w.keys)
	for range core.DeniedPerSecond + w.r.IntN(9) {
		c := w.consumption(k)
		c.Limit = 0
		_, err := w.s.Consume(context.Background(), c)
		w.must(err)
	}
}

// whole is all that a store holds, to be compared.
type whole struct {
	Accounts []*core.Account
	Each     []account
}

type account struct {
	Owners    []*core.OwnerKey
	Plans     []*core.Plan
	Users     []*core.User
	Keys      []*core.Key
	ByDigest  []string
	Access    *core.Access
	Counters  map[string]core.Counter
	Days      map[string][]core.CounterDay
	Histories map[string][]core.Entry
	Last      string // the last numbers
}

// everything reads all that a store holds.
func everything(t testing.TB, s core.Importer) (all whole) {
	t.Helper()
	ctx, everything := context.Background(), core.Page{Number: 1, Size: 1 << 20}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	var err error
	all.Accounts, _, err = s.Accounts(ctx, everything)
	must(err)
	for _, acct := range all.Accounts {
		if acct.Import != nil && !acct.Import.Complete {
			t.Errorf("account %s: got an incomplete import, want a complete one", acct.Name)
		}
		acct.Import = nil
		a := account{Counters: map[string]core.Counter{}, Days: map[string][]core.CounterDay{}, Histories: map[string][]core.Entry{}}
		a.Access, err = s.Access(ctx, acct.ID)
		must(err)
		a.Owners, _, err = s.OwnerKeys(ctx, acct.ID, everything)
		must(err)
		a.Plans, _, err = s.Plans(ctx, acct.ID, everything)
		must(err)
		a.Users, _, err = s.Users(ctx, acct.ID, core.UserFilter{}, everything)
		must(err)
		a.Keys, _, err = s.Keys(ctx, acct.ID, core.KeyFilter{}, everything)
		must(err)
		var ids []core.CounterID
		for _, u := range a.Users {
			ids = append(ids, core.CounterID{Account: acct.ID, UserID: u.ID})
		}
		for _, k := range a.Keys {
			ids = append(ids, core.CounterID{Account: acct.ID, KeyID: k.ID})
			for _, d := range k.Digests() {
				found, err := s.KeyByDigest(ctx, d)
				must(err)
				a.ByDigest = append(a.ByDigest, found.ID)
			}
		}
		counters, err := s.Counters(ctx, ids)
		must(err)
		for i, id := range ids {
			maps.DeleteFunc(counters[i].Meters, func(_ string, t *core.Tally) bool { return *t == core.Tally{} }) // as a missing meter
			a.Counters[ownerOf(id).String()] = counters[i]
			a.Days[ownerOf(id).String()], err = s.CounterDays(ctx, id)
			must(err)
			entries, total, err := s.History(ctx, id, time.Time{}, everything)
			must(err)
			if total != len(entries) {
				t.Errorf("history of %+v: got %d entries of %d", id, len(entries), total)
			}
			a.Histories[ownerOf(id).String()] = entries
		}
		last, err := s.LastNumbers(ctx, acct.ID)
		must(err)
		a.Last = fmt.Sprint(last)
		all.Each = append(all.Each, a)
	}
	return all
}

// wantSame fails unless a store holds everything that is wanted and nothing else.
func wantSame(t testing.TB, when string, want whole, s core.Importer) {
	t.Helper()
	got := everything(t, s)
	if d := cmp.Diff(want, got, cmpopts.EquateEmpty(), cmpopts.IgnoreUnexported(core.Counter{})); d != "" {
		t.Fatalf("%s (-source +target):\n%.4000s", when, d)
	}
}

// mustImport imports everything from a store.
func mustImport(t testing.TB, from, to core.Importer, o ImportOptions) Report {
	t.Helper()
	r, err := Import(t.Context(), to, FromStore(from, exporting()), o)
	if err != nil {
		t.Fatalf("Import: %v", err)
	}
	return r
}

// archiveOf returns the archive of a store.
func archiveOf(t testing.TB, s core.Importer) []byte {
	t.Helper()
	var b bytes.Buffer
	if _, err := Export(t.Context(), s, &b, exporting()); err != nil {
		t.Fatalf("Export: %v", err)
	}
	return b.Bytes()
}

// source returns a source that reads an archive.
func source(archive []byte) Source {
	return FromArchive(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(archive)), nil })
}

// body returns an archive without its header and trailer, which have the time and the SHA-256.
func body(t testing.TB, archive []byte) string {
	t.Helper()
	lines := strings.SplitAfter(string(archive), "\n")
	if len(lines) < 3 {
		t.Fatalf("archive: got %d lines, want at least 3", len(lines))
	}
	return strings.Join(lines[1:len(lines)-2], "")
}

// filled returns a store with a world.
func filled(t testing.TB, seed uint64, steps int) *memstore.Store {
	t.Helper()
	s := memstore.New()
	newWorld(t, s, seed, steps)
	return s
}
