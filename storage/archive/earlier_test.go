package archive

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/secrets"
	"github.com/limitkeeper/limitkeeper/core/service"
	"github.com/limitkeeper/limitkeeper/storage/memstore"
)

// A backup of an earlier version with a record that breaks a rule of this version is refused. The error names the record and the
// rule, and says what to do.
func TestEarlierRules(t *testing.T) {
	lines := strings.Split(forgery, "\n")
	const id = "key-of-another-system"
	digest := fmt.Sprintf("%x", secrets.DigestOf(id))
	for _, tc := range []struct {
		line          int
		was, is, want string
	}{
		{0, `"last"`, `"key_prefix":"ab_","key_prefixes":["ab_"],"last"`, "line 2: account acct_a: key_prefix: A key prefix has at least 4 letters"},
		{3, `"name":"pro"`, `"name":"pro","features":["` + strings.Repeat(strings.Repeat("é", 250)+`","`, 40) + `"]`, "line 5: plan plan_1: features: A plan must be at most 16384 bytes"},
		{4, `bob@`, `ｂob@`, "line 6: user 1: email: Email must be in its plain form"},
		{5, "2c70e12b7a0646f92279f427c7b38e7334d8e5389cff167a1dc30e73f826b683", digest, "line 7: key key_1: its value is the external id of the user 1"},
	} {
		file := append([]string(nil), lines...)
		file[tc.line] = strings.Replace(file[tc.line], tc.was, tc.is, 1)
		if tc.line == 5 {
			file[4] = strings.Replace(file[4], `"name"`, `"external_id":"`+id+`","name"`, 1)
		}
		_, err := Import(t.Context(), memstore.New(), source(forged(t, file...)), ImportOptions{now: func() time.Time { return noon }})
		if err == nil || !strings.Contains(err.Error(), tc.want) || !strings.Contains(err.Error(), "change these records in its service") || strings.Contains(err.Error(), id) {
			t.Errorf("got %v, want %q", err, tc.want)
		}
	}
}

// A prefix that an earlier version accepted is not in the archive: the keys with it work as keys of any form.
func TestEarlierPrefix(t *testing.T) {
	from, to := memstore.New(), memstore.New()
	svc := service.New(from, service.Config{})
	a, _, _, err := svc.CreateAccount(t.Context(), "acme")
	if err == nil {
		_, err = from.UpdateAccount(t.Context(), a.ID, func(a *core.Account) error {
			a.KeyPrefix, a.KeyPrefixes = "ab_", []string{"acme_", "ab_"}
			return nil
		})
	}
	if err == nil {
		_, err = Import(t.Context(), to, source(archiveOf(t, from)), ImportOptions{EmptyOnly: true})
	}
	if err != nil {
		t.Fatal(err)
	}
	got, err := to.Account(t.Context(), a.ID)
	if err != nil || got.KeyPrefix != "" || fmt.Sprint(got.KeyPrefixes) != "[acme_]" || !got.AnyKeyForm {
		t.Errorf("got %+v, %v, want the prefix acme_ and any key form", got, err)
	}
	if ok, err := service.New(to, service.Config{}).WellFormedKey(t.Context(), a.ID, "ab_1234"); !ok || err != nil {
		t.Errorf("a key with the earlier prefix: got %v, %v, want it accepted", ok, err)
	}
}
