package keyimport

import (
	"crypto/sha256"
	"fmt"
	"strings"
	"testing"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/service"
	"github.com/limitkeeper/limitkeeper/storage/memstore"
)

// An open quotation mark is a row of more than 64 KiB, in the first row too, and is named with its line.
func TestOpenQuote(t *testing.T) {
	long := strings.Repeat("x", 200_000)
	for name, tt := range map[string]struct{ file, want string }{
		"in the first row":         {"key,user_name\n\"abc,A\n" + long, "line 2: the row has more than 64 KiB"},
		"in a later row":           {"key,user_name\nacme-key-1,A\n\"abc,A\n" + long, "line 3: the row has more than 64 KiB"},
		"after a row of two lines": {"key,user_name\nacme-key-1,\"A\nB\"\n\"abc,A\n" + long, "line 4: the row has more than 64 KiB"},
		"in the header":            {"\"key,user_name\n" + long, "line 1: "},
		"at the end":               {"key,user_name\nacme-key-1,\"A", "line 2: "},
	} {
		w := newWorld(t, memstore.New())
		_, err := w.run(tt.file, Options{})
		if err == nil || !strings.Contains(err.Error(), tt.want) || w.counts() != "0 users 0 keys [] false" {
			t.Errorf("%s: got %v, and there are %s", name, err, w.counts())
		}
	}
}

// The value of a key is not stored as the id, the email or the name of its user.
func TestKeyInUserColumns(t *testing.T) {
	const key = "sk-live-4eC39HqLyjWDarjtT1zdp7dc"
	for _, row := range []string{key + ",,", ",," + key, ",customer " + key + ","} {
		w := newWorld(t, memstore.New())
		_, err := w.run("key,user_external_id,user_name,user_email,plan\n"+key+","+row+",pro\n", Options{})
		if err == nil || strings.Contains(err.Error(), key) || w.counts() != "0 users 0 keys [] false" {
			t.Errorf("%s: got %v, and there are %s", row, err, w.counts())
		}
	}
	for _, column := range []string{"name", "metadata.team"} {
		w := newWorld(t, memstore.New())
		_, err := w.run("key,user_name,plan,"+column+"\n"+key+",A,pro,"+key+"\n", Options{})
		if err == nil || !strings.Contains(err.Error(), "line 2: "+column+": it holds the key of the row") || w.counts() != "0 users 0 keys [] false" {
			t.Errorf("%s: got %v, and there are %s", column, err, w.counts())
		}
	}
	digest := fmt.Sprintf("%x", sha256.Sum256([]byte(key)))
	w := newWorld(t, memstore.New())
	_, err := w.svc.CreateUser(t.Context(), w.account, core.UserPatch{Name: new("B"), ExternalID: core.Some("stored-id")})
	w.ok(err)
	before := w.counts()
	for file, want := range map[string]string{
		key + ",,A\nk2,," + key:              "line 3: user_external_id: it is the key of line 2",
		"k2,," + key + "\n," + digest + ",A": "line 3: the key is the external id of the user of line 2",
		"k3,,A\nk4,,k4":                      "line 3: user_external_id: it holds the key of the row",
		"stored-id,,A":                       "line 2: the key is the external id of the user 1",
	} {
		rows := strings.ReplaceAll(file, "\n", ",pro\n") + ",pro\n"
		if _, err := w.run("key,key_sha256,user_external_id,plan\n"+rows, Options{}); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), key) || w.counts() != before {
			t.Errorf("%s: got %v, and there are %s; want %s", file, err, w.counts(), want)
		}
	}
	w = newWorld(t, memstore.New())
	_, err = w.run("key,user_name,plan\n"+key+",A,pro\n", Options{})
	w.ok(err)
	if _, err := w.run("key,user_name,plan\nk2,"+key+",pro\n", Options{}); err == nil || !strings.Contains(err.Error(), "line 2: user_name: it is a key of the account") {
		t.Errorf("a row with a key of the account as its external id: got %v", err)
	}
	_, err = w.run("key,user_name,plan\n"+key+",A,pro\n", Options{})
	w.ok(err)
	_, err = w.svc.CreateUser(t.Context(), w.account, core.UserPatch{Name: new("B"), ExternalID: core.Some(key)})
	if core.ErrorCode(err) != core.CodeValidation {
		t.Errorf("a user with a key of the account as its external id: got %v", err)
	}
	_, err = w.svc.Validate(t.Context(), w.account, service.Request{Secret: key, Endpoint: "/", Method: "GET", Cost: 1, RequestID: "id-" + key})
	if core.ErrorCode(err) != core.CodeInvalidRequest {
		t.Errorf("a request id with the key of the request: got %v", err)
	}
}
