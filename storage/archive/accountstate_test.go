package archive

import (
	"bytes"
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/memstore"
)

// changeAccount changes an account of a store.
func changeAccount(t *testing.T, s core.Store, id string, fn func(*core.Account)) {
	t.Helper()
	_, err := s.UpdateAccount(t.Context(), id, func(a *core.Account) error { fn(a); return nil })
	if err != nil {
		t.Fatal(err)
	}
}

// A disabled account is disabled after a restore, and a renamed one has its former names.
func TestDisabledAccount(t *testing.T) {
	from, to := memstore.New(), memstore.New()
	addAccount(t, from, "a")
	changeAccount(t, from, "acct_a", func(a *core.Account) { a.Disabled, a.Name, a.FormerNames = true, "b", []string{"a"} })
	mustImport(t, from, to, small())
	got, err := to.Account(t.Context(), "acct_a")
	if err != nil || !got.Disabled || got.Name != "b" || !slices.Equal(got.FormerNames, []string{"a"}) {
		t.Errorf("got %+v, %v, want a disabled account b that was a before", got, err)
	}
}

// An archive leaves out an account that is being deleted, and none can have one. A store that is deleting the same account is refused.
func TestDeletedAccount(t *testing.T) {
	from := memstore.New()
	addAccount(t, from, "a")
	addAccount(t, from, "b")
	whole := archiveOf(t, from)
	changeAccount(t, from, "acct_a", func(a *core.Account) { a.Deleting = true })
	if archive := archiveOf(t, from); bytes.Contains(archive, []byte("acct_a")) || !bytes.Contains(archive, []byte("acct_b")) {
		t.Errorf("got %s, want the account b only", archive)
	}
	if _, err := Export(t.Context(), from, io.Discard, ExportOptions{Account: "a"}); !errors.Is(err, core.ErrAccountNotFound) {
		t.Errorf("the account alone: got %v, want %v", err, core.ErrAccountNotFound)
	}
	if _, err := Import(t.Context(), from, source(whole), ImportOptions{Account: "a"}); !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), "the store is deleting the account acct_a") {
		t.Errorf("into a store that deletes it: got %v, want ErrRefused", err)
	}
	for _, member := range []string{`"deleting":true`, `"former_names":["b","b"]`, `"former_names":["a"]`, `"former_names":[""]`} {
		changed := bytes.Replace(whole, []byte(`{"account":{`), []byte(`{"account":{`+member+","), 1)
		if _, err := Import(t.Context(), memstore.New(), source(changed), small()); !errors.Is(err, ErrRefused) && !errors.Is(err, ErrDamaged) {
			t.Errorf("%s: got %v, want a refusal", member, err)
		}
	}
}

// deletedDuring is a live store with few resources, in which an account is deleted while its counters are exported.
type deletedDuring struct{ *memstore.Store }

var all = core.Page{Number: 1, Size: 100}

func (s deletedDuring) UsersAfter(ctx context.Context, account string, id int64, _ int) ([]*core.User, error) {
	list, _, err := s.Users(ctx, account, core.UserFilter{}, all)
	return slices.DeleteFunc(list, func(u *core.User) bool { return u.ID <= id }), err
}

func (s deletedDuring) PlansAfter(ctx context.Context, account string, seq int64, _ int) ([]*core.Plan, error) {
	list, _, err := s.Plans(ctx, account, all)
	return slices.DeleteFunc(list, func(p *core.Plan) bool { return p.Seq <= seq }), err
}

func (s deletedDuring) KeysAfter(ctx context.Context, account string, seq int64, _ int) ([]*core.Key, error) {
	list, _, err := s.Keys(ctx, account, core.KeyFilter{}, all)
	return slices.DeleteFunc(list, func(k *core.Key) bool { return k.Seq <= seq }), err
}

func (s deletedDuring) CountersWithDays(ctx context.Context, ids []core.CounterID) ([]core.Counter, [][]core.CounterDay, error) {
	_, err := s.UpdateAccount(ctx, ids[0].Account, func(a *core.Account) error { a.Deleting = true; return nil })
	if err != nil {
		return nil, nil, err
	}
	counters, err := s.Counters(ctx, ids)
	return counters, make([][]core.CounterDay, len(ids)), err
}

// An export of an account that is deleted meanwhile fails: it lacks records.
func TestDeletedDuringExport(t *testing.T) {
	for _, noHistory := range []bool{false, true} {
		s := deletedDuring{memstore.New()}
		addAccount(t, s, "a")
		addUser(t, s)
		_, err := Export(t.Context(), s, io.Discard, ExportOptions{NoHistory: noHistory})
		if !errors.Is(err, core.ErrAccountNotFound) || !strings.Contains(err.Error(), `the account "a" was deleted meanwhile`) {
			t.Errorf("without the histories %t: got %v, want an error that names the account", noHistory, err)
		}
	}
}
