package service_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/secrets"
	"github.com/limitkeeper/limitkeeper/core/service"
	"github.com/limitkeeper/limitkeeper/storage/memstore"
	"github.com/limitkeeper/limitkeeper/storage/storetest"
)

// A search finds every item with the text, page by page, in the order of creation.
func TestSearch(t *testing.T) {
	now := at("2026-03-05T10:00:00Z")
	store := memstore.New()
	s := service.New(store, service.Config{Clock: func() time.Time { return now }})
	a, _, _, _ := s.CreateAccount(t.Context(), "acme")
	b, _, _, _ := s.CreateAccount(t.Context(), "other")
	pl, keys := storetest.Fill(t, store, a.ID, 1500) // "user 1", "user1@example.com", "cus_1", …
	users := func(text string, p core.Page) (ids []int64, more bool) {
		t.Helper()
		list, end, err := s.SearchUsers(t.Context(), a.ID, text, core.UserFilter{}, p)
		if err != nil {
			t.Fatal(err)
		}
		for _, u := range list {
			ids = append(ids, u.ID)
		}
		return ids, end.More
	}
	for _, tc := range []struct {
		text string
		page core.Page
		want string
	}{
		{"user 77", core.Page{Number: 1, Size: 3}, "[77 770 771] true"},
		{"USER 77", core.Page{Number: 4, Size: 3}, "[778 779] false"},
		{"user77", core.Page{Number: 2, Size: 11}, "[] false"},
		{"1499@", core.Page{Number: 1, Size: 3}, "[1499] false"},
		{"1499", core.Page{Number: 1, Size: 3}, "[1499] false"},
		{"USER7@example.com", core.Page{Number: 1, Size: 3}, "[7] false"},
		{"@example.com", core.Page{Number: 1, Size: 1}, "[1] true"},
		{"us_77", core.Page{Number: 1, Size: 3}, "[77 770 771] true"},
		{"cus_77", core.Page{Number: 1, Size: 3}, "[77] false"}, // the whole id
		{"CUS_1499", core.Page{Number: 1, Size: 3}, "[1499] false"},
		{"nobody", core.Page{Number: 1, Size: 3}, "[] false"},
		{" ", core.Page{Number: 500, Size: 3}, "[1498 1499 1500] false"},
	} {
		ids, more := users(tc.text, tc.page)
		if got := fmt.Sprint(ids, more); got != tc.want {
			t.Errorf("users with %q, page %v: got %s, want %s", tc.text, tc.page, got, tc.want)
		}
	}
	k, secret, err := s.CreateKey(t.Context(), a.ID, core.KeyPatch{Name: new("Production"), UserID: new(int64(7)), PlanID: core.Some(pl.ID)})
	if err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]string{
		"production": k.ID, "DUCT": k.ID, secret: k.ID, k.ID: k.ID, secret[len(secret)-4:]: k.ID,
		keys[1234].ID: keys[1234].ID, "key_none": "", secrets.NewUserSecret(secrets.DefaultKeyPrefix): "",
	} {
		list, end, err := s.SearchKeys(t.Context(), a.ID, text, core.KeyFilter{}, core.Page{Number: 1, Size: 2})
		got := ""
		if len(list) > 0 {
			got = list[0].ID
		}
		if err != nil || end.More || got != want || len(list) > 1 {
			t.Errorf("keys with %q: got %v, %+v, %v, want %s", text, list, end, err, want)
		}
		if list, _, _ := s.SearchKeys(t.Context(), b.ID, text, core.KeyFilter{}, core.Page{Number: 1, Size: 2}); len(list) > 0 {
			t.Errorf("keys of another account with %q: got %v", text, list)
		}
	}
	list, _, _ := s.SearchKeys(t.Context(), a.ID, "", core.KeyFilter{UserID: 7}, core.Page{Number: 1, Size: 9})
	if len(list) != 2 {
		t.Errorf("keys of a user: got %v, want 2", list)
	}
}
