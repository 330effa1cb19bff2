package caddymodule

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"

	"github.com/caddyserver/caddy/v2"
	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	"github.com/spf13/cobra"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/keyimport"
)

func init() {
	caddycmd.RegisterCommand(caddycmd.Command{
		Name:      "import-keys",
		Usage:     "--csv FILE --account NAME [--key-prefix PREFIX] [--dry-run] [--store <store>]",
		Short:     "Imports the keys of another system from CSV",
		Long:      importKeysHelp,
		CobraFunc: importKeysCommand,
	})
}

const importKeysHelp = `
Adds the keys of a CSV file, with their users, to an account. The keys keep their values.
The first line has the names of the columns:
	key or key_sha256         the value, or its SHA-256 in hexadecimal or base64
	user_external_id, user_email, user_name
	plan                      the name or id of a plan of the account
	status                    active or inactive
	expires_at, name, metadata.<member>
	used                      the requests in the present window of the plan

	limitkeeper import-keys --csv keys.csv --account acme --dry-run

The whole file is checked first. Each bad line is named, and then nothing is changed.
Run the same command again to finish an interrupted import: keys that the account has
stay as they are.

Without --store the command speaks to a running server over Caddy's admin endpoint.
With --store it opens a store that no server uses: badger:<dir>, redis:<address> or
config:<file>.
`

func importKeysCommand(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.String("csv", "", "The CSV file")
	flags.String("account", "", "The name of the account")
	flags.StringSlice("key-prefix", nil, "A prefix of the keys that the file has only by digest, such as acme_")
	flags.Bool("dry-run", false, "Check the file and the account, and write nothing")
	flags.String("store", "", "A store that no server uses: badger:<dir>, redis:<address> or config:<file>")
	flags.String("address", "", "The address of the admin endpoint, if it is not the default")
	flags.StringP("config", "c", "", "A configuration file to take the address of the admin endpoint from")
	flags.StringP("adapter", "a", "", "The config adapter of a configuration file that is neither a Caddyfile nor JSON")
	flags.Bool("json", false, "Print the report as JSON")
	cmd.Args = cobra.NoArgs
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
		defer stop()
		return runImportKeys(ctx, cmd)
	}
}

// runImportKeys imports the file that the flags of a command name, and prints the report.
func runImportKeys(ctx context.Context, cmd *cobra.Command) error {
	flags := caddycmd.Flags{FlagSet: cmd.Flags()}
	prefixes, err := cmd.Flags().GetStringSlice("key-prefix")
	if err != nil {
		return err
	}
	i := keyFile{name: flags.String("csv"), account: flags.String("account"), prefixes: prefixes, dryRun: flags.Bool("dry-run")}
	if i.name == "" || i.account == "" {
		return errors.New("name the file with --csv and the account with --account")
	}
	var report keyimport.Report
	if spec := flags.String("store"); spec != "" {
		report, err = i.intoStore(ctx, cmd, spec, flags.String("adapter"))
	} else {
		report, err = i.intoServer(ctx, cmd)
	}
	if err != nil {
		return err
	}
	return printKeyReport(cmd.OutOrStdout(), report, i.dryRun, flags.Bool("json"))
}

// keyFile is a CSV file to import.
type keyFile struct {
	name, account string
	prefixes      []string
	dryRun        bool
}

func (i keyFile) open() (io.ReadCloser, error) { return os.Open(i.name) }

// intoStore imports the file into a store that no server uses.
func (i keyFile) intoStore(ctx context.Context, cmd *cobra.Command, name, adapter string) (r keyimport.Report, err error) {
	cctx, done := caddy.NewContext(caddy.Context{Context: ctx})
	defer done()
	spec, err := parseStoreSpec(name, adapter)
	if err != nil {
		return r, fmt.Errorf("--store: %w", err)
	}
	m, err := spec.load(cctx)
	if err == nil {
		err = isThere(m)
	}
	if err != nil {
		return r, fmt.Errorf("--store: %w", err)
	}
	log := slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), &slog.HandlerOptions{Level: slog.LevelWarn}))
	store, err := m.Open(log, core.DefaultTunables(), nil)
	if err != nil {
		return r, fmt.Errorf("--store: %w", err)
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	s := core.NewService(store, core.Config{})
	im, account, err := importTarget(ctx, s, store, i.account)
	if err != nil {
		return r, err
	}
	o := keyimport.Options{KeyPrefixes: i.prefixes}
	if i.dryRun {
		f, err := i.open()
		if err != nil {
			return r, err
		}
		defer f.Close()
		return keyimport.Check(ctx, s, im, account, f, o)
	}
	return keyimport.Run(ctx, s, im, account, i.open, o)
}

// importTarget returns the store as an importer, and the id of an account.
func importTarget(ctx context.Context, s *core.Service, store core.Store, account string) (core.Importer, string, error) {
	im, ok := store.(core.Importer)
	if !ok {
		return nil, "", errors.New("this store takes no import: want badger or redis")
	}
	a, err := s.AccountByName(ctx, account)
	if errors.Is(err, core.ErrAccountNotFound) {
		return nil, "", fmt.Errorf("there is no account %q", account)
	}
	if err != nil {
		return nil, "", err
	}
	return im, a.ID, nil
}

// intoServer sends the file to a running server: once to be checked, and once to be written.
func (i keyFile) intoServer(ctx context.Context, cmd *cobra.Command) (r keyimport.Report, err error) {
	c, err := newAdminClient(cmd)
	if err != nil {
		return r, err
	}
	q := url.Values{"account": {i.account}, "key_prefix": i.prefixes, "dry_run": {"true"}}
	if r, err = i.send(ctx, c, q); err != nil || i.dryRun {
		return r, err
	}
	q.Del("dry_run")
	q["accept"], q["any_key_form"] = r.KeyPrefixes, []string{strconv.FormatBool(r.AnyKeyForm)}
	return i.send(ctx, c, q)
}

// send sends the file in the body of a request.
func (i keyFile) send(ctx context.Context, c *adminClient, q url.Values) (r keyimport.Report, err error) {
	f, err := os.Open(i.name)
	if err != nil {
		return r, err
	}
	defer f.Close()
	stop := context.AfterFunc(ctx, func() { f.Close() })
	defer stop()
	resp, err := caddycmd.AdminAPIRequest(c.address, http.MethodPost, adminBase+importKeysPath+"?"+q.Encode(),
		http.Header{"Content-Type": {"text/csv"}}, f)
	if err != nil {
		return r, errors.Join(ctx.Err(), c.explain(err))
	}
	defer resp.Body.Close()
	var answer keyImportAnswer
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil {
		return r, fmt.Errorf("reading the answer of %s: %w", c.address, err)
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
func importKeys(s *core.Service, r *http.Request) (any, error) {
	app, err := runningApp()
	if err != nil {
		return nil, err
	}
	q := r.URL.Query()
	im, account, err := importTarget(r.Context(), s, app.live.Load().store, q.Get("account"))
	if err != nil {
		return nil, caddy.APIError{HTTPStatus: http.StatusBadRequest, Err: err}
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
	done := "Imported:"
	if dryRun {
		done = "Nothing was written. The import would add:"
	}
	text := fmt.Sprintf("%s\nkeys           %d\nusers          %d\nusage          %d counters\nalready there  %d keys\n",
		done, r.Keys, r.Users, r.Used, r.AlreadyThere)
	if r.UsedKept > 0 {
		text += fmt.Sprintf("The counters of %d users had counted before and stay as they are.\n", r.UsedKept)
	}
	if len(r.KeyPrefixes) > 0 {
		text += "The account accepts keys with " + strings.Join(r.KeyPrefixes, ", ") + ".\n"
	}
	if r.AnyKeyForm {
		text += "The account accepts keys of any form: unknown keys are looked up, and logs cannot recognize keys without a prefix.\n"
	}
	_, err := io.WriteString(out, text)
	return err
}
