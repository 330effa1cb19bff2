package command

import (
	"context"
	"encoding/json"
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
	prefixes, err := t.cmd.Flags().GetStringSlice("key-prefix")
	if err != nil {
		return err
	}
	i := keyFile{name: t.flags.String("csv"), account: t.flags.String("account"), prefixes: prefixes, dryRun: t.flags.Bool("dry-run")}
	if i.account == "" {
		return errors.New("--account: name the account that gets the keys")
	}
	var report keyimport.Report
	if store := t.flags.String("store"); store != "" {
		report, err = i.intoStore(ctx, t, store)
	} else {
		report, err = i.intoServer(ctx, t)
	}
	if err != nil {
		return err
	}
	t.progress.end()
	return printKeyReport(t.cmd.OutOrStdout(), report, i.dryRun, t.json)
}

// keyFile is a CSV file to import.
type keyFile struct {
	name, account string
	prefixes      []string
	dryRun        bool
}

// intoStore imports the file into a store that no server uses.
func (i keyFile) intoStore(ctx caddy.Context, t *transfer, store string) (r keyimport.Report, err error) {
	defer limitMemory()()
	o := keyimport.Options{KeyPrefixes: i.prefixes, DryRun: i.dryRun, Progress: func(pass string, rows int) {
		t.progress.show(archive.Progress{Pass: pass, Account: i.account, Records: int64(rows)})
	}}
	open := func() (io.ReadCloser, error) { return os.Open(i.name) }
	err = t.useStore(ctx, store, func(im core.Importer) error {
		s := core.NewService(im, core.Config{})
		account, err := importTarget(ctx, s, i.account)
		if err == nil {
			r, err = keyimport.Run(ctx, s, im, account, open, o)
		}
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

// importTarget returns the id of an account.
func importTarget(ctx context.Context, s *core.Service, account string) (string, error) {
	a, err := s.AccountByName(ctx, account)
	if errors.Is(err, core.ErrAccountNotFound) {
		return "", fmt.Errorf("there is no account %q", account)
	}
	if err != nil {
		return "", err
	}
	return a.ID, nil
}

// intoServer sends the file to a running server: once to be checked, and once to be written.
func (i keyFile) intoServer(ctx context.Context, t *transfer) (r keyimport.Report, err error) {
	c, err := newAdminClient(t.cmd)
	if err != nil {
		return r, err
	}
	q := url.Values{"account": {i.account}, "key_prefix": i.prefixes, "dry_run": {"true"}}
	if r, err = i.send(ctx, t, c, "check", q); err != nil || i.dryRun {
		return r, err
	}
	q.Del("dry_run")
	q["accept"], q["any_key_form"] = r.KeyPrefixes, []string{strconv.FormatBool(r.AnyKeyForm)}
	return i.send(ctx, t, c, "write", q)
}

// send sends the file in the body of a request.
func (i keyFile) send(ctx context.Context, t *transfer, c *adminClient, pass string, q url.Values) (r keyimport.Report, err error) {
	f, err := os.Open(i.name)
	if err != nil {
		return r, err
	}
	defer f.Close()
	var answer keyImportAnswer
	if err := t.upload(ctx, c, importKeysPath+"?"+q.Encode(), "text/csv", f, archive.Progress{Pass: pass, Account: i.account}, &answer); err != nil {
		return r, err
	}
	if answer.Problems != nil {
		return r, answer.Problems
	}
	return answer.Report, nil
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
	im, ok := running.Store.(core.Importer)
	if !ok {
		return nil, badRequest(errors.New("this store takes no import: want badger or redis"))
	}
	account, err := importTarget(r.Context(), s, q.Get("account"))
	if err != nil {
		return nil, badRequest(err)
	}
	o := keyimport.Options{KeyPrefixes: q["key_prefix"]}
	var answer keyImportAnswer
	if q.Get("dry_run") == "true" {
		answer.Report, err = keyimport.Check(r.Context(), s, im, account, r.Body, o)
	} else {
		checked := keyimport.Report{KeyPrefixes: q["accept"], AnyKeyForm: q.Get("any_key_form") == "true"}
		answer.Report, err = keyimport.Write(r.Context(), s, im, account, r.Body, checked, o)
	}
	if problems, ok := errors.AsType[*keyimport.Problems](err); ok {
		answer.Problems, err = problems, nil
	}
	return answer, err
}

// printKeyReport prints the result of an import of keys.
func printKeyReport(out io.Writer, r keyimport.Report, dryRun, asJSON bool) error {
	if asJSON {
		return json.NewEncoder(out).Encode(r)
	}
	if r.Rows == 0 {
		_, err := fmt.Fprintln(out, "Nothing to do: the file has no keys.")
		return err
	}
	if r.Unchanged() {
		_, err := fmt.Fprintf(out, "Nothing to do: the account has the %d keys of the file.\n", r.AlreadyThere)
		return err
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
	_, err := io.WriteString(out, text)
	return err
}
