package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/limitkeeper/limitkeeper/caddymodule"
	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/service"
	"github.com/limitkeeper/limitkeeper/storage/memstore"
)

// brokenOff is a store with many users. Each read behind the first n users fails.
type brokenOff struct {
	core.Store
	n int
}

func (s *brokenOff) Users(_ context.Context, account string, _ core.UserFilter, p core.Page) (list []*core.User, total int, err error) {
	if p.Offset() >= s.n {
		return nil, 0, errors.New("disk on fire")
	}
	for i := range p.Size {
		list = append(list, &core.User{AccountID: account, ID: int64(p.Offset() + i + 1), Name: fmt.Sprint("user ", p.Offset()+i+1)})
	}
	return list, 1_000_000, nil
}

func (s *brokenOff) DaysOf(_ context.Context, ids []core.CounterID, first, _ core.Date) ([][]core.CounterDay, error) {
	lists := make([][]core.CounterDay, len(ids))
	for i := range ids {
		lists[i] = []core.CounterDay{{Date: first, Traffic: core.Traffic{Allowed: 1}}}
	}
	return lists, nil
}

// A report that fails in the middle ends the connection, so that the command exits with an error. A report that fails before the first row is answered with the error.
func TestReportFails(t *testing.T) {
	for n, want := range map[int]int{5_000: 4_000, 0: 0} {
		store := &brokenOff{memstore.New(), n}
		s := service.New(store, service.Config{})
		if _, _, _, err := s.CreateAccount(t.Context(), "acme"); err != nil {
			t.Fatal(err)
		}
		running, failed := &caddymodule.OpenStore{Store: store, Service: s}, make(chan error, 1)
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			answer, err := reportUsage(running, r)
			if err == nil {
				err = answer.(stream)(w)
			}
			failed <- err
		}))
		resp, err := server.Client().Get(server.URL + "/?format=csv")
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		server.Close()
		if rows := strings.Count(string(body), "user "); rows < want || (err != nil) != (n > 0) {
			t.Errorf("after %d users: got %d rows and the error %v, want at least %d rows", n, rows, err, want)
		}
		if n == 0 {
			if err := <-failed; err == nil || len(body) > 0 {
				t.Errorf("without rows: got the error %v and %q, want the error alone", err, body)
			}
		}
	}
}

// Without a name, the report is of the only account.
func TestReportOfOnlyAccount(t *testing.T) {
	s := service.New(memstore.New(), service.Config{})
	running := &caddymodule.OpenStore{Service: s}
	report := func(query string) error {
		_, err := reportUsage(running, httptest.NewRequest(http.MethodGet, "/limitkeeper/usage?"+query, nil))
		return err
	}
	if err := report(""); err == nil {
		t.Error("without an account: got no error")
	}
	for _, name := range []string{"acme", "other"} {
		if _, _, _, err := s.CreateAccount(t.Context(), name); err != nil {
			t.Fatal(err)
		}
		if err := report(""); (err == nil) != (name == "acme") {
			t.Errorf("after %s was created: got %v, want an error only for two accounts", name, err)
		}
	}
	for query, want := range map[string]bool{"account=other": true, "account=none": false, "account=acme&group_by=x": false, "account=acme&from=x": false} {
		if err := report(query); (err == nil) != want {
			t.Errorf("%s: got %v", query, err)
		}
	}
}
