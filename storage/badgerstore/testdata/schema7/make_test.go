// The stores of this directory were made with this file in the package of the commit 4f10d97, which had schema 7:
//
//	MAKE=<directory> go test -run TestMakeSchema7 ./storage/badgerstore
//
// The killed one is of a process that has sent itself SIGKILL. The answers are those of that version, which opened a
// copy.
package badgerstore

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
)

// schema7Digests are those of all keys, also of those that are deleted or have another value now.
func schema7Digests() (list []core.Digest) {
	for _, id := range []string{"kept", "disabled", "again", "again-new", "deleted", "gone", "late", "of-late", "okey", "imported"} {
		list = append(list, digestFor(id))
	}
	return list
}

// digestFor returns a digest that compresses well.
func digestFor(id string) (d core.Digest) {
	copy(d[:], id)
	return d
}

func TestMakeSchema7(t *testing.T) {
	to, victim := os.Getenv("MAKE"), os.Getenv("MAKE_VICTIM")
	if victim != "" {
		makeSchema7(t, victim, to)
		return
	}
	if to == "" {
		t.Skip("no MAKE")
	}
	for _, how := range []string{"closed", "killed"} {
		dir := t.TempDir()
		cmd := exec.Command(os.Args[0], "-test.run", "^TestMakeSchema7$")
		cmd.Env = append(os.Environ(), "MAKE="+dir, "MAKE_VICTIM="+how)
		out, err := cmd.CombinedOutput()
		if how == "closed" && err != nil || how != "closed" && cmd.ProcessState.ExitCode() != -1 {
			t.Fatalf("%s: %v\n%s", how, err, out)
		}
		after := t.TempDir()
		copyDatabase(t, after, dir)
		copyEventLog(t, after, dir)
		s, err := open(after, quiet)
		if err != nil {
			t.Fatal(err)
		}
		text, err := answersOf(s, acct, schema7Digests())
		other, err2 := answersOf(s, "other", nil)
		if err := errors.Join(err, err2, s.Close()); err != nil {
			t.Fatal(err)
		}
		pack(t, filepath.Join(to, how+".tar.gz"), dir, text+other)
	}
}

func pack(t *testing.T, name, dir, answers string) {
	var b bytes.Buffer
	z, _ := gzip.NewWriterLevel(&b, gzip.BestCompression)
	w := tar.NewWriter(z)
	err := errors.Join(
		os.WriteFile(filepath.Join(dir, "answers"), []byte(answers), 0o600),
		w.AddFS(os.DirFS(dir)), w.Close(), z.Close(),
		os.WriteFile(name, b.Bytes(), 0o600))
	if err != nil {
		t.Fatal(err)
	}
}

func die() {
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {}
}

func makeSchema7(t *testing.T, how, dir string) {
	s := mustOpen(t, dir, quiet)
	base7(t, s)
	switch how {
	case "closed":
	case "killed":
		s = reopened(t, s, quiet)
		late7(t, s)
		die()
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

// reopened closes and opens a store: everything is in tables then.
func reopened(t *testing.T, s *Store, o Options) *Store {
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s, err := open(s.dir, o)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func key7(id string, user int64, plan string) *core.Key {
	return &core.Key{AccountID: acct, ID: id, UserID: user, PlanID: plan, Status: core.KeyActive, Digest: digestFor(id), CreatedAt: noon, UpdatedAt: noon}
}

func ask7(t *testing.T, s *Store, key string, user int64, at time.Time, n int) {
	for i := range n {
		c := request(key, user, 1000, at.Add(time.Duration(i)*time.Millisecond))
		c.Shared = i%3 == 0
		c.Entry.Endpoint = fmt.Sprint("/", i)
		if i%4 > 1 {
			c.Costs = []core.MeterCost{{Meter: "tokens", Cost: int64(10 * i)}}
			c.Further = []core.Limit{{Meter: "tokens", Max: 1000000, Period: core.Lifetime}}
			c.Entry.Costs = c.Costs
		}
		if i%7 == 3 {
			c.Anchors = core.Anchors{{Start: noon.AddDate(0, 0, -5)}}
		}
		if i%5 == 1 {
			c.RequestID = fmt.Sprint("id", at.Unix(), i)
		}
		consume(t, s, c)
	}
}

// base makes the world that each store has.
func base7(t *testing.T, s *Store) {
	withAccount(t, s)
	a := &core.Account{ID: "other", Name: "other", CreatedAt: noon}
	k := &core.OwnerKey{ID: "okey2", AccountID: "other", Digest: core.DigestOf("other"), CreatedAt: noon}
	if err := s.CreateAccount(context.Background(), a, k); err != nil {
		t.Fatal(err)
	}
	err := s.Update(context.Background(), "other", func(tx core.Tx) error {
		return errors.Join(tx.PutUser(&core.User{AccountID: "other", Name: "one"}),
			tx.PutKey(&core.Key{AccountID: "other", ID: "okey", UserID: 1, Status: core.KeyActive, Digest: digestFor("okey")}))
	})
	if err != nil {
		t.Fatal(err)
	}
	update(t, s, func(tx core.Tx) error {
		err := errors.Join(tx.PutPlan(&core.Plan{AccountID: acct, ID: "small", Name: "Small", Limit: 10, Period: core.Month}),
			tx.PutPlan(&core.Plan{AccountID: acct, ID: "large", Name: "Large", Limit: 1000, Period: core.Month}))
		for id := int64(1); id <= 4; id++ {
			err = errors.Join(err, tx.PutUser(&core.User{AccountID: acct, ID: id, Name: "user", PlanID: "small", Email: new(fmt.Sprintf("%d@example.com", id))}))
		}
		for i := range 70 { // more than a page
			err = errors.Join(err, tx.PutKey(key7(fmt.Sprint("many_", i), 2, "")))
		}
		for _, id := range []string{"kept", "disabled", "again", "deleted", "imported"} {
			err = errors.Join(err, tx.PutKey(key7(id, 1, "large")))
		}
		return errors.Join(err, tx.PutKey(key7("gone", 4, "")))
	})
	imported := core.Counter{LastUsedAt: noon}
	imported.Add(&core.Charge{At: noon, Cost: 7, Costs: []core.MeterCost{{Meter: "tokens", Cost: 70}}})
	day := core.CounterDay{Date: core.DateOf(noon) - 3, Traffic: core.Traffic{Allowed: 5}}
	if err := errors.Join(s.SetCounters(t.Context(), []core.CounterID{ofKey("imported")}, []core.Counter{imported}),
		s.SetDays(t.Context(), ofKey("imported"), []core.CounterDay{day})); err != nil {
		t.Fatal(err)
	}
	for d := -3; d <= 0; d++ {
		ask7(t, s, "kept", 1, noon.AddDate(0, 0, d), 12)
	}
	for _, id := range []string{"disabled", "again", "deleted", "imported"} {
		ask7(t, s, id, 1, noon, 6)
	}
	ask7(t, s, "gone", 4, noon, 6)
	for range 40 { // denied, more than the history takes
		consume(t, s, request("kept", 1, 1, noon))
	}
	if err := s.checkpoint(); err != nil {
		t.Fatal(err)
	}
	ask7(t, s, "kept", 1, noon.Add(time.Minute), 5)
	ask7(t, s, "many_3", 2, noon, 3)
}

// late makes what no table has.
func late7(t *testing.T, s *Store) {
	update(t, s, func(tx core.Tx) error {
		disabled, regenerated := key7("disabled", 1, "large"), key7("again", 1, "small")
		return errors.Join(
			replaced(tx, disabled, func(k *core.Key) { k.Status = core.KeyInactive }),
			replaced(tx, regenerated, func(k *core.Key) { k.Digest = digestFor("again-new") }),
			tx.PutUser(&core.User{AccountID: acct, Name: "late", PlanID: "large", Email: new("late@example.com")}),
			tx.PutKey(key7("late", 5, "")), tx.PutKey(key7("of-late", 1, "small")))
	})
	ask7(t, s, "late", 5, noon.Add(time.Hour), 7)
	ask7(t, s, "deleted", 1, noon.Add(time.Hour), 2)
	update(t, s, func(tx core.Tx) error { return errors.Join(tx.DeleteKey("deleted"), tx.DeleteUser(4)) })
	ask7(t, s, "kept", 1, noon.Add(time.Hour), 7)
	if err := s.checkpoint(); err != nil {
		t.Fatal(err)
	}
	update(t, s, func(tx core.Tx) error {
		return errors.Join(tx.PutPlan(&core.Plan{AccountID: acct, ID: "newest", Name: "Newest", Limit: 1, Period: core.Day}), tx.DeleteKey("of-late"))
	})
	ask7(t, s, "late", 5, noon.Add(2*time.Hour), 70) // more than oftenUnfolded
	ask7(t, s, "kept", 1, noon.Add(2*time.Hour), 9)
	ask7(t, s, "again", 1, noon.Add(2*time.Hour), 4)
	for range 5 {
		consume(t, s, request("late", 5, 1, noon.Add(3*time.Hour)))
	}
	if err := s.events.Flush(); err != nil {
		t.Fatal(err)
	}
}

// replaced puts a key changed by fn.
func replaced(tx core.Tx, k *core.Key, fn func(*core.Key)) error {
	k, err := tx.Key(k.ID)
	if err != nil {
		return err
	}
	fn(k)
	return tx.PutKey(k)
}
