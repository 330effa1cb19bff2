package archive

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/memstore"
)

// forged returns an archive of the lines, with a valid last line.
func forged(t testing.TB, lines ...string) []byte {
	t.Helper()
	text := `{"archive":{"version":1,"source":"test","time":"2026-03-12T12:00:00Z"}}` + "\n"
	counts := Counts{}
	for _, line := range lines {
		kind, _, _ := strings.Cut(line[len(`{"`):], `"`)
		counts[Kind(kind)]++
		text += line + "\n"
	}
	sum := sha256.Sum256([]byte(text))
	end, err := json.Marshal(Trailer{counts, hex.EncodeToString(sum[:])})
	if err != nil {
		t.Fatal(err)
	}
	return []byte(text + `{"end":` + string(end) + "}\n")
}

// forgery is a valid archive of one account, as lines.
const forgery = `{"account":{"id":"acct_a","name":"a","created_at":"2026-01-05T09:00:00Z","last":{"user":3,"plan":3,"key":3}}}
{"owner_key":{"id":"okey_1","account_id":"acct_a","name":"default","digest":"4c1029697ee358715d3a14a2add817c4b01651440de808371f78165ac90dc581","hint":"lk_…wxyz","created_at":"2026-01-05T09:00:00Z"}}
{"access":{"account_id":"acct_a","password":"$argon2id$v=19$m=19456,t=2,p=1$MDEyMzQ1Njc4OWFiY2RlZg$MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY"}}
{"plan":{"account_id":"acct_a","id":"plan_1","seq":1,"name":"pro","limit":5000,"period":"day","created_at":"2026-01-05T09:01:00Z","updated_at":"2026-01-05T09:01:00Z"}}
{"user":{"account_id":"acct_a","id":1,"name":"Bob","email":"bob@example.com","created_at":"2026-02-01T10:00:00Z","updated_at":"2026-02-01T10:00:00Z"}}
{"key":{"account_id":"acct_a","id":"key_1","seq":1,"name":"ci","user_id":1,"status":"active","digest":"2c70e12b7a0646f92279f427c7b38e7334d8e5389cff167a1dc30e73f826b683","hint":"lk_…wxyz","created_at":"2026-02-01T10:00:05Z","updated_at":"2026-02-01T10:00:05Z"}}
{"counter":{"account_id":"acct_a","user_id":1,"at":"2026-03-12T11:00:00Z","today":7,"usage":[{"meter":"requests","period":"day","start":"2026-03-12T00:00:00Z","used":7}]}}
{"day":{"account_id":"acct_a","user_id":1,"date":"2026-03-12","allowed":0,"denied":2,"shared":{"allowed":7,"denied":0}}}
{"day":{"account_id":"acct_a","key_id":"key_1","date":"2026-03-11","allowed":0,"denied":2}}
{"event":{"account_id":"acct_a","history":"user","at":"2026-03-12T11:00:00Z","key_id":"key_1","user_id":1,"endpoint":"/a","method":"GET","cost":1}}`

// A line with a valid SHA-256 can still have values that no store has given it. A value that a store cannot keep is
// refused before anything is written. If it is not, the import fails at its end and leaves an account that stays closed, or
// it damages the data of other accounts: a page with 100,000 meters cannot be stored.
func TestForged(t *testing.T) {
	usage := func(n int, name string) string {
		list := make([]string, n)
		for i := range list {
			list[i] = `{"meter":"` + name + strings.Repeat("a", i) + `","period":"day","start":"2026-03-12T00:00:00Z","used":7}`
		}
		return strings.Join(list, ",")
	}
	at := func(at, start string) string {
		return `"at":"` + at + `","today":7,"usage":[{"meter":"requests","period":"day","start":"` + start + `"`
	}
	counted := at("2026-03-12T11:00:00Z", "2026-03-12T00:00:00Z")
	requests, reason := `{"meter":"requests",`, `"method":"GET","denied":true,"reason":"because"`
	for name, tc := range map[string]struct{ was, is, want string }{
		"valid":                         {},
		"a second access":               {`{"plan"`, `{"access":{"account_id":"acct_a"}}` + "\n" + `{"plan"`, "line 5: access: a second one"},
		"second prices":                 {`{"plan"`, `{"prices":{"account_id":"acct_a"}}` + "\n" + `{"prices":{"account_id":"acct_a"}}` + "\n" + `{"plan"`, "line 6: prices: a second one"},
		"prices of another account":     {`{"plan"`, `{"prices":{"account_id":"acct_b"}}` + "\n" + `{"plan"`, "line 5: prices"},
		"an invalid price":              {`{"plan"`, `{"prices":{"account_id":"acct_a","rules":[{"endpoint":"/x","costs":{"tokens":"input -"}}]}}` + "\n" + `{"plan"`, "line 5: prices a: rules: rules[0].costs"},
		"a price that is no price":      {`{"plan"`, `{"prices":{"account_id":"acct_a","rules":[{"endpoint":"/x","costs":{"tokens":1.5}}]}}` + "\n" + `{"plan"`, "line 5: prices"},
		"a second owner's key":          {`{"access"`, strings.Replace(strings.Split(forgery, "\n")[1], "4c10", "4c11", 1) + "\n" + `{"access"`, "line 4: owner_key okey_1: a second one with this id"},
		"an id with a zero byte":        {`"acct_a","name":"a"`, `"acct\u0000a","name":"a"`, "line 2: account: the id must be 1 to 64 letters"},
		"a long id":                     {`"key_1","seq"`, `"` + strings.Repeat("k", 65) + `","seq"`, "line 7: key kkk"},
		"a large record":                {`"name":"Bob"`, `"name":"` + strings.Repeat("b", maxLine) + `"`, "line 6: a line of more than 262144 bytes"},
		"a large last number":           {`"user":3`, `"user":9223372036854775807`, `the account "a" before: the numbers of last are from 0 to 9007199254740991`},
		"a long name":                   {`"name":"Bob"`, `"name":"` + strings.Repeat("b", 65100) + `"`, "line 6: user 1: name: Name must be at most 255"},
		"a name with a bell":            {`"name":"ci"`, `"name":"\u0007"`, "line 7: key key_1: name: Name must not hold control"},
		"a long email":                  {`bob@example.com`, strings.Repeat("b", 200_000) + `@example.com`, "line 6: user 1: email: Invalid email"},
		"a look-alike email":            {`bob@example.com`, `ｂob@example.com`, "line 6: user 1: email: Email must be in its plain form"},
		"an invisible email":            {`bob@example.com`, `b\u200bob@example.com`, "line 6: user 1: email:"},
		"a long external id":            {`"name":"Bob"`, `"name":"Bob","external_id":"` + strings.Repeat("x", 200_000) + `"`, "line 6: user 1: external_id: External id must be at most 255"},
		"many anchors":                  {`"name":"Bob"`, `"name":"Bob","anchors":[` + strings.Repeat(`{"start":"2026-01-01T00:00:00Z"},`, 99) + `{}]`, "line 6: user 1: anchors: A user has at most 32"},
		"large metadata":                {`"name":"Bob"`, `"name":"Bob","metadata":{"a":"` + strings.Repeat("x", 4096) + `"}`, "line 6: user 1: metadata: Metadata must be at most 4 KiB"},
		"a large plan":                  {`"name":"pro"`, `"name":"pro","features":[` + strings.Repeat(`"`+strings.Repeat("é", 250)+`",`, 40) + `""]`, "line 5: plan plan_1: features: A plan must be at most 16384 bytes"},
		"a plan without a name":         {`"name":"pro"`, `"name":""`, "line 5: plan plan_1: name: Name is required"},
		"a costly password":             {`m=19456,t=2`, `m=4294967295,t=2`, "line 4: access a: password: Password must be an argon2id hash with at most m=65536, t=3 and p=4"},
		"a slow password":               {`m=19456,t=2`, `m=19456,t=4294967295`, "line 4: access a: password:"},
		"80 prefixes":                   {`"last"`, `"key_prefixes":["` + strings.Repeat(`acme_","acm`, 80) + `e_"],"last"`, "line 2: account acct_a: key_prefix"},
		"a wrong meter of the account":  {`"last"`, `"meters":["A"],"last"`, "line 2: account acct_a: meters: A meter is named"},
		"500 meters of the account":     {`"last"`, `"meters":[` + strings.Repeat(`"a",`, 499) + `"a"],"last"`, "line 2: account acct_a: meters: An account has at most 64"},
		"a counter in 9999":             {counted, at("9999-12-31T11:00:00Z", "9999-12-31T00:00:00Z"), "line 8: counter: it is of 9999-12-31T11:00:00Z, and times are before 2200"},
		"a control in an endpoint":      {`"endpoint":"/a"`, `"endpoint":"\u001b[2J"`, "line 11: event: its texts must be UTF-8"},
		"a wrong id in an event":        {`"key_id":"key_1","user_id":1,"endpoint"`, `"key_id":"k/1","user_id":1,"endpoint"`, "line 11: event: key_id must be 1 to 64 letters"},
		"a long hint":                   {`"hint":"lk_…wxyz","created_at":"2026-02-01`, `"hint":"` + strings.Repeat("h", 99) + `…","created_at":"2026-02-01`, "line 7: key key_1: hint: Hint must be"},
		"a wrong key prefix":            {`"last"`, `"key_prefix":"lk_abc_","last"`, "line 2: account acct_a: key_prefix"},
		"a year after 9999 in UTC":      {`"2026-02-01T10:00:00Z"`, `"9999-12-31T23:59:59-23:00"`, "line 6: user: encode a record of the kind user"},
		"a counter before 1970":         {counted, at("1969-03-12T11:00:00Z", "1969-03-12T00:00:00Z"), "line 8: the counter of user 1: at must be 1970 or later"},
		"a fraction of a second":        {counted, at("2026-03-12T11:00:00.5Z", "2026-03-12T00:00:00Z"), "line 8: the counter of user 1: at must be in whole seconds"},
		"a large usage":                 {`"used":7`, `"used":9223372036854775807`, "line 8: the counter of user 1: the usage of requests in the day must be from 1 to"},
		"unsorted usage":                {requests, usage(1, "t") + "," + requests, "line 8: the counter of user 1: at must be in whole seconds, and usage must be sorted"},
		"a wrong name of a meter":       {requests, usage(1, "t-") + "," + requests, `line 8: the counter of user 1: "t-" cannot be the name`},
		"many meters":                   {`"used":7}`, `"used":7},` + usage(32, "a") + "," + usage(31, "b") + "," + usage(2, "c"), "line 8: the counter of user 1: a counter must have at most 64 meters"},
		"an unused counter":             {counted + `,"used":7}]`, `"at":"1970-01-01T00:00:00Z","today":0,"usage":[]`, "line 8: the counter of user 1: a counter without usage"},
		"no day of the counter":         {`"date":"2026-03-12"`, `"date":"2026-03-10"`, "user 1 before has no day 2026-03-12"},
		"another number of today":       {`"shared":{"allowed":7`, `"shared":{"allowed":8`, "line 9: the day 2026-03-12 of user 1: its allowed traffic is 8, and must equal today of the counter, 7"},
		"a day after the counter":       {`"date":"2026-03-12"`, `"date":"2026-03-13"`, "line 9: the day 2026-03-13 of user 1: it has allowed traffic, and the last day of the counter is 2026-03-12"},
		"a day without a counter":       {`"allowed":0,"denied":2}}` + "\n" + `{"event"`, `"allowed":1,"denied":2}}` + "\n" + `{"event"`, "line 10: the day 2026-03-11 of key key_1: it has allowed traffic, and the last day of the counter is 1970-01-01"},
		"a day of a key that is shared": {`"2026-03-11","allowed":0,"denied":2`, `"2026-03-11","allowed":0,"denied":2,"shared":{"allowed":0,"denied":1}`, "line 10: the day 2026-03-11 of key key_1: the day of a key, or of the deleted users, must have no shared traffic"},
		"a day without traffic":         {`"2026-03-11","allowed":0,"denied":2`, `"2026-03-11","allowed":0,"denied":0`, "line 10: the day 2026-03-11 of key key_1: a day without traffic"},
		"an hour with numbers of a day": {`"2026-03-11","allowed":0,"denied":2`, `"2026-03-11T10:00:00Z","allowed":0,"denied":2`, "line 10: the day 2026-03-11T10:00:00Z of key key_1: the numbers of an hour must be in its meters"},
		"half an hour":                  {`"2026-03-11"`, `"2026-03-11T10:30:00Z"`, "line 10: day"},
		"requests of a day twice":       {`"2026-03-11","allowed":0,"denied":2`, `"2026-03-11","allowed":0,"denied":2,"meters":[{"meter":"requests","denied":1}]`, "line 10: the day 2026-03-11 of key key_1: its requests are not only in its own numbers"},
		"an unknown reason":             {`"method":"GET"`, reason, `line 11: event: a denied request must have one of the reasons [quota rate disabled expired restricted concurrency], an allowed one none; got "because"`},
		"a reason of an allowed one":    {`"method":"GET"`, `"method":"GET","reason":"quota"`, "line 11: event: a denied request must have one of the reasons"},
		"a long endpoint":               {`"endpoint":"/a"`, `"endpoint":"` + strings.Repeat("a", 257) + `"`, "line 11: event: its texts must be at most 256 bytes long"},
		"a wrong meter of an event":     {`"cost":1`, `"cost":1,"costs":[{"meter":"A","cost":1}]`, "line 11: event: costs must have at most 64 meters"},
		"a negative cost":               {`"cost":1`, `"cost":-1`, "line 11: event: its costs must be from 0 to 9007199254740991"},
		"a negative cost on a meter":    {`"cost":1`, `"cost":1,"costs":[{"meter":"tokens","cost":-1}]`, "line 11: event: its costs must be from 0 to"},
		"a long problem":                {`"name":"Bob"`, `"` + strings.Repeat("b", 9999) + `":1`, "bbb…"},
	} {
		t.Run(name, func(t *testing.T) {
			if tc.was != "" && !strings.Contains(forgery, tc.was) {
				t.Fatalf("no %s in the lines", tc.was)
			}
			to := memstore.New()
			archive := forged(t, strings.Split(strings.Replace(forgery, tc.was, tc.is, 1), "\n")...)
			_, err := Import(t.Context(), to, source(archive), ImportOptions{now: func() time.Time { return noon }})
			if tc.want == "" {
				if err != nil || body(t, archiveOf(t, to)) != body(t, archive) {
					t.Errorf("got %v, want the same archive from the store", err)
				}
				return
			}
			if !errors.Is(err, ErrRefused) && !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), tc.want) || len(err.Error()) > 2000 {
				t.Errorf("got %.3000v, want it refused with %q", err, tc.want)
			}
			if _, n, err := to.Accounts(t.Context(), core.Page{Number: 1, Size: 1}); n != 0 || err != nil {
				t.Errorf("got %d accounts, %v, want none", n, err)
			}
		})
	}
}

// The error for a file that is no archive does not have its text: a file of keys has secrets.
func TestOtherFile(t *testing.T) {
	_, err := Import(t.Context(), memstore.New(), source([]byte("sk_live_secret,bob\n")), small())
	if !errors.Is(err, ErrDamaged) || strings.Contains(err.Error(), "sk_live") {
		t.Errorf("got %v, want ErrDamaged without the text of the file", err)
	}
}

// Text after a compressed archive is damage, as after one that is not compressed.
func TestTextAfterCompression(t *testing.T) {
	var file bytes.Buffer
	w, err := Compress("a.gz", &file)
	if err == nil {
		_, err = w.Write(forged(t, strings.Split(forgery, "\n")...))
	}
	if err = errors.Join(err, w.Close()); err != nil {
		t.Fatal(err)
	}
	file.WriteString("more")
	_, err = Import(t.Context(), memstore.New(), source(file.Bytes()), small())
	if !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), "line 13: ") {
		t.Errorf("got %v, want ErrDamaged in line 13", err)
	}
}
