package redisstore_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/archive"
	"github.com/limitkeeper/limitkeeper/storage/redisstore"
	"github.com/limitkeeper/limitkeeper/storage/redisstore/redistest"
	"github.com/limitkeeper/limitkeeper/storage/storetest"
)

// TestStored: the store opens what commit c3466cc0 has stored: testdata/stored.json, what DUMP answers for each key of Redis after random operations. If
// this fails, an upgrade loses the data of customers. A new format needs a way to read the earlier one.
//
// LIMITKEEPER_RECORD=1 go test -run TestStored ./storage/redisstore makes the files again.
func TestStored(t *testing.T) {
	const dumped, exported = "testdata/stored.json", "testdata/stored.ndjson"
	if os.Getenv("LIMITKEEPER_RECORD") != "" {
		server := filledAtRandom(t)
		keys := map[string][]byte{}
		for _, key := range strings.Fields(server.Do(t, "KEYS", "*")) {
			if dump := server.Do(t, "DUMP", key); dump != "" {
				keys[key] = []byte(dump)
			}
		}
		text, err := json.MarshalIndent(keys, "", "\t")
		if err := errors.Join(err, os.MkdirAll("testdata", 0o755), os.WriteFile(dumped, text, 0o644), os.WriteFile(exported, exportOf(t, server), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(exported)
	text, err2 := os.ReadFile(dumped)
	keys := map[string][]byte{}
	if err := errors.Join(err, err2, json.Unmarshal(text, &keys)); err != nil {
		t.Fatal(err)
	}
	server := redistest.Start(t)
	for key, dump := range keys {
		server.Do(t, "RESTORE", key, "0", string(dump)) // without its lifetime, which would end
	}
	if got := exportOf(t, server); !bytes.Equal(got, want) {
		t.Errorf("the store exports other lines:\n%s\nwant\n%s", got, want)
	}
}

// filledAtRandom returns a server with a store after random operations.
func filledAtRandom(t *testing.T) *redistest.Server {
	return rapid.Custom(func(run *rapid.T) *redistest.Server {
		server := redistest.Start(t)
		o := redisstore.Options{Addresses: []string{server.Addr()}}
		opened := storetest.Opened{Store: open(t, o), Reopen: func(t testing.TB) core.Store { return open(t, o) }}
		storetest.FillAtRandom(run, t, &opened)
		return server
	}).Example(9)
}

// exportOf opens the store of a server, and returns the records of its archive, and the oldest open holds of its accounts.
func exportOf(t *testing.T, server *redistest.Server) []byte {
	t.Helper()
	s := open(t, redisstore.Options{Addresses: []string{server.Addr()}})
	var b bytes.Buffer
	if _, err := archive.Export(t.Context(), s, &b, archive.ExportOptions{}); err != nil {
		t.Fatal(err)
	}
	lines := bytes.SplitAfter(b.Bytes(), []byte("\n"))
	records := bytes.Join(lines[1:len(lines)-2], nil) // the header has the time of the export, the trailer a checksum
	accounts, _, err := s.Accounts(t.Context(), core.Page{Number: 1, Size: 100})
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range accounts {
		holds, err := s.OldestHolds(t.Context(), a.ID)
		if err != nil {
			t.Fatal(err)
		}
		records = fmt.Appendln(records, a.ID, holds)
	}
	return records
}
