package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/url"
	"os"
	"runtime/debug"
	"strconv"
	"strings"

	"github.com/caddyserver/caddy/v2"

	"github.com/limitkeeper/limitkeeper/caddymodule"
	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/service"
	"github.com/limitkeeper/limitkeeper/keyimport"
	"github.com/limitkeeper/limitkeeper/storage/archive"
)

// importKeysHelp is the part of the help of import about keys of other systems.
const importKeysHelp = `
With --csv it adds the keys of another system, with their users, to an account. The keys
keep their values. The first line of the file has the names of the columns:
	key or key_sha256         the value, or its SHA-256 in hexadecimal or base64
	user_external_id, user_email, user_name
	plan                      the name or id of a plan of the account
	status                    active or inactive
	expires_at, name, metadata.<member>
	used                      the requests in the present window of the plan

The whole file is checked first. Each bad line is named, and then nothing is changed.
Run the same command again to finish an interrupted import: keys that the account has
stay as they are.
`

// importKeyFile imports the CSV file that the flags of a command name, and prints the report.
func (t *transfer) importKeyFile(ctx caddy.Context) error {
	prefixes, err := t.flags.GetStringSlice("key-prefix")
	if err != nil {
		return err
	}
	name := t.flags.String("csv")
	o := keyimport.Options{Account: t.flags.String("account"), KeyPrefixes: prefixes, DryRun: t.flags.Bool("dry-run")}
	if o.Account == "" {
		return errors.New("--account: name the account that gets the keys")
	}
	var report keyimport.Report
	if store := t.flags.String("store"); store != "" {
		report, err = t.importKeysStore(ctx, name, store, o)
	} else {
		report, err = t.importKeysServer(name, o)
	}
	if err != nil {
		return err
	}
	return t.print(report, keyReport(report, o.DryRun))
}

// importKeysStore imports a file of keys into a store that no server uses.
func (t *transfer) importKeysStore(ctx caddy.Context, name, store string, o keyimport.Options) (r keyimport.Report, err error) {
	defer limitMemory()()
	o.Progress = func(pass string, rows int) {
		t.progress.show(archive.Progress{Pass: pass, Account: o.Account, Records: int64(rows)})
	}
	open := func() (io.ReadCloser, error) { return os.Open(name) }
	err = t.useService(ctx, store, func(ctx context.Context, s *service.Service, im core.Importer) error {
		r, err = keyimport.Run(ctx, s, im, open, o)
		return err
	})
	return r, err
}

// importMemory is the limit of the memory of an import without a server, in bytes. An import of 1,000,000 keys needs half of it
// at any time; the garbage collector leaves the rest. With 200 MiB it takes half as long again. Mapped files are not included.
const importMemory = 260 << 20

// limitMemory sets the limit, unless GOMEMLIMIT has set one. The caller calls restore.
func limitMemory() (restore func()) {
	before := debug.SetMemoryLimit(-1)
	if before == math.MaxInt64 {
		debug.SetMemoryLimit(importMemory)
	}
	return func() { debug.SetMemoryLimit(before) }
}

// importKeysServer sends a file of keys to a running server: once to be checked, and once to be written.
func (t *transfer) importKeysServer(name string, o keyimport.Options) (r keyimport.Report, err error) {
	send := func(pass string, q url.Values) error {
		var answer keyImportAnswer
		err := t.upload(name, importKeysPath, q, archive.Progress{Pass: pass, Account: o.Account}, &answer)
		if err == nil && answer.Problems != nil {
			err = answer.Problems
		}
		r = answer.Report
		return err
	}
	q := url.Values{"account": {o.Account}, "key_prefix": o.KeyPrefixes, "dry_run": {"true"}}
	if err := send("check", q); err != nil || o.DryRun {
		return r, err
	}
	q.Del("dry_run")
	q["accept"], q["any_key_form"] = r.KeyPrefixes, []string{strconv.FormatBool(r.AnyKeyForm)}
	err = send("write", q)
	return r, err
}

// importKeysPath is the path of imports of keys on the admin endpoint.
const importKeysPath = "import-keys"

// keyImportAnswer is the answer to an import of keys. Bad lines are no error of the request: Caddy would log them.
type keyImportAnswer struct {
	keyimport.Report
	Problems *keyimport.Problems `json:"problems,omitempty"`
}

// importKeys imports the CSV in the body of a request. With dry_run it checks the CSV; otherwise it writes the CSV, and
// the query has the key forms of the check.
func importKeys(running *caddymodule.OpenStore, r *http.Request) (any, error) {
	q, s := r.URL.Query(), running.Service
	im, err := importerOf(running.Store)
	if err != nil {
		return nil, badRequest(err)
	}
	o := keyimport.Options{Account: q.Get("account"), KeyPrefixes: q["key_prefix"]}
	var answer keyImportAnswer
	if q.Get("dry_run") == "true" {
		answer.Report, err = keyimport.Check(r.Context(), s, im, r.Body, o)
	} else {
		checked := keyimport.Report{KeyPrefixes: q["accept"], AnyKeyForm: q.Get("any_key_form") == "true"}
		answer.Report, err = keyimport.Write(r.Context(), s, im, r.Body, checked, o)
	}
	if problems, ok := errors.AsType[*keyimport.Problems](err); ok {
		answer.Problems, err = problems, nil
	}
	if _, missing := errors.AsType[keyimport.NoAccountError](err); missing {
		err = badRequest(err)
	}
	return answer, err
}

// keyReport describes the result of an import of keys.
func keyReport(r keyimport.Report, dryRun bool) string {
	if r.Rows == 0 {
		return "Nothing to do: the file has no keys.\n"
	}
	if r.Unchanged() {
		return fmt.Sprintf("Nothing to do: the account has the %d keys of the file.\n", r.AlreadyThere)
	}
	done, accepts := "Imported:", "accepts"
	if dryRun {
		done, accepts = "Nothing was written. The import would add:", "would accept"
	}
	text := fmt.Sprintf("%s\nkeys           %d\nusers          %d\nusage          %d counters\nalready there  %d keys\n",
		done, r.Keys, r.Users, r.Used, r.AlreadyThere)
	if r.UsedKept > 0 {
		text += fmt.Sprintf("The counters of %d users had counted before and stay as they are.\n", r.UsedKept)
	}
	if len(r.KeyPrefixes) > 0 {
		text += "The account " + accepts + " keys with " + strings.Join(r.KeyPrefixes, ", ") + ".\n"
	}
	if r.AnyKeyForm {
		text += "The account " + accepts + " keys of any form: unknown keys are looked up, and logs cannot recognize keys without a prefix.\n"
	}
	return text
}
