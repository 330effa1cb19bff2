package badgerstore

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/secrets"
)

// Tables are damaged while the store serves. Reads fail, and then the store rebuilds its database and serves again, with all
// data and all counts. The process goes on. No other store is open meanwhile: [table.Unreadable] counts the damage of each
// database in the process.
func TestDamageWhileServing(t *testing.T) {
	for name, harm := range map[string]func(file string, size int64) error{
		"cut off": func(file string, size int64) error { return os.Truncate(file, size/8) },
		"emptied": func(file string, _ int64) error { return os.Truncate(file, 0) },
		"changed": func(file string, size int64) error {
			f, err := os.OpenFile(file, os.O_RDWR, 0)
			if err != nil {
				return err
			}
			noise := strings.Repeat("\xff\x00\xa5", int(size/6))
			_, err = f.WriteAt([]byte(noise), size/4)
			return errors.Join(err, f.Close())
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			s := mustOpen(t, dir, Options{})
			if err := s.CreateAccount(t.Context(), &core.Account{ID: "a", Name: "a"}, &core.OwnerKey{ID: "o", AccountID: "a", Digest: secrets.DigestOf(t.Name())}); err != nil {
				t.Fatal(err)
			}
			const users = 5000
			for first := 0; first < users; first += 1000 {
				err := s.Update(t.Context(), "a", func(tx core.Tx) error {
					for i := range 1000 {
						text, _ := json.Marshal(map[string]string{"text": strings.Repeat(fmt.Sprintf("%x", (first+i)*7919), 200)})
						if err := tx.PutUser(&core.User{AccountID: "a", Name: "u", Metadata: text}); err != nil {
							return err
						}
					}
					return nil
				})
				if err != nil {
					t.Fatal(err)
				}
			}
			known(t, s, "key")
			for range 5 {
				consume(t, s, request("key", 1, endless, noon))
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			s = mustOpen(t, dir, Options{})
			for range 5 { // half of the counts are newer than the tables
				consume(t, s, request("key", 1, endless, noon))
			}
			for _, file := range glob(t, dir, "*.sst") {
				info, err := os.Stat(file)
				if err == nil {
					err = harm(file, info.Size())
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			healed := func() bool { return s.healing.at.Load() > 0 && s.Health(t.Context()) == nil }
			waitUntil(t, "the store is healed", func() bool {
				for id := int64(1); id <= users; id += 50 {
					if _, err := s.User(t.Context(), "a", id); err != nil && !errors.Is(err, core.ErrUnavailable) {
						t.Fatalf("user %d: got %v, want that the store is unavailable", id, err)
					}
				}
				return healed()
			})
			for id := int64(1); id <= users; id++ {
				if u, err := s.User(t.Context(), "a", id); err != nil || !strings.Contains(string(u.Metadata), fmt.Sprintf("%x", (id-1)*7919)) {
					t.Fatalf("user %d after the healing: got %+v, %v", id, u, err)
				}
			}
			wantUsed(t, s, ofKey("key"), 10)
			consume(t, s, request("key", 1, endless, noon))
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			wantWhole(t, dir)
		})
	}
}
