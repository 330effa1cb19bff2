package caddymodule

import (
	"cmp"
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
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/caddyserver/caddy/v2"
	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"
	"golang.org/x/term"
	"golang.org/x/time/rate"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/archive"
	"github.com/limitkeeper/limitkeeper/storage/badgerstore"
)

func init() {
	for _, c := range []caddycmd.Command{
		{Name: "backup", Usage: "FILE [--store <store>] [--rate <bytes>]", Short: "Writes everything to a file, while the server runs",
			Long: backupHelp, CobraFunc: backupCommand},
		{Name: "restore", Usage: "FILE --store <store>", Short: "Fills an empty store from a backup", Long: restoreHelp, CobraFunc: restoreCommand},
		{Name: "export", Usage: "[FILE] [--account NAME] [--no-history] [--store <store>]", Short: "Writes accounts to a file",
			Long: exportHelp, CobraFunc: exportCommand},
		{Name: "import", Usage: "FILE|--csv FILE [--account NAME] [--no-history] [--dry-run] [--store <store>]", Short: "Adds the accounts of a file, or keys from CSV, to a store",
			Long: importHelp, CobraFunc: importCommand},
		{Name: "migrate", Usage: "--from <store> --to <store> [--history-retention <30d>]", Short: "Moves everything from one store to another",
			Long: migrateHelp, CobraFunc: migrateCommand},
	} {
		caddycmd.RegisterCommand(c)
	}
}

// archiveHelp is the part of the help that the commands for archives share.
const archiveHelp = `
Without --store the command speaks to a running server over Caddy's admin endpoint,
as the command reload does. With --store it opens a store that no server uses:
	badger:<dir>                    the embedded store in a directory; the command protect
	                                uses limitkeeper in the directory of --data
	redis:<address>[,<address>…]    Redis or Valkey without a password
	config:<file>                   the store of a Caddyfile or JSON config,
	                                with its passwords from the environment or files
`

const backupHelp = `
Writes all accounts with their owner's keys, sign-in data, plans, users, keys, counters,
days and histories to FILE, as of one instant. The server goes on serving. FILE is
compressed if its name ends in .gz or .zst. It replaces an earlier FILE when it is
complete. The file has no secrets, only digests of them.

	limitkeeper backup /backup/limitkeeper-$(date +%F).zst
	limitkeeper backup nightly.zst --rate 10MB
` + archiveHelp

const restoreHelp = `
Writes the accounts of a backup to an empty store, and compares the store with the
backup. The whole file is checked before anything is written. An interrupted restore
leaves a store whose accounts the server refuses: run the same restore again.

	limitkeeper restore limitkeeper-2026-11-23.zst --store badger:/var/lib/limitkeeper

A store is badger:<dir>, redis:<address>[,<address>…] or config:<file>. No server uses it.
`

const exportHelp = `
Writes all accounts, or one, to FILE or to the standard output. The format is that of
backup. The same store gives the same lines, but for the first and the last.

	limitkeeper export --account acme acme.ndjson
	limitkeeper export --no-history | grep '^{"plan"'
` + archiveHelp

const importHelp = `
Adds the accounts of a file that export or backup has written to a store that does not
have them. The whole file is checked before anything is written: each invalid line is
named with its number and the reason, and then nothing is changed. At the end the
store is compared with the file. An interrupted import leaves accounts that the server
refuses: run the same import again.

	limitkeeper import acme.ndjson --dry-run
	limitkeeper import backup.zst --account acme
` + importKeysHelp + archiveHelp

const migrateHelp = `
Copies accounts, owner's keys, sign-in data, plans, users, keys, counters, days and
histories from the store --from to the store --to, which is empty. All keys keep their
values. Request ids are not copied: a request that is repeated afterwards counts again.

	limitkeeper migrate --from badger:/var/lib/limitkeeper --to config:Caddyfile

A store is badger:<dir>, redis:<address>[,<address>…] or config:<file>.

Stop all servers that use either store first. Start them with the new store after the
command has succeeded: it has then compared all data of both stores. The store --from is
not changed. If the command is interrupted, run it again.

--history-retention limits the age of the copied history. The default is the configured
history_retention if a config is given, or else 30 days.
`

// archiveFlags adds the flags that the commands for archives share. With admin the command can also speak to a server.
func archiveFlags(cmd *cobra.Command, admin bool) {
	flags := cmd.Flags()
	if admin {
		flags.String("address", "", "The address of the admin endpoint, if it is not the default")
		flags.StringP("config", "c", "", "A configuration file to take the address of the admin endpoint from")
	}
	flags.StringP("adapter", "a", "", "The config adapter of a configuration file that is neither a Caddyfile nor JSON")
	flags.Bool("json", false, "Print the summary as JSON")
}

// withSignals makes run the action of a command. SIGINT and SIGTERM cancel its context.
func withSignals(cmd *cobra.Command, run func(ctx context.Context, t *transfer, args []string) error) {
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
		defer stop()
		flags := caddycmd.Flags{FlagSet: cmd.Flags()}
		t := &transfer{cmd: cmd, flags: flags, json: flags.Bool("json"), progress: newProgressLine(cmd.ErrOrStderr())}
		err := run(ctx, t, args)
		t.progress.end()
		if err != nil && ctx.Err() != nil {
			return errors.New("interrupted")
		}
		return err
	}
}

func backupCommand(cmd *cobra.Command) {
	archiveFlags(cmd, true)
	cmd.Flags().String("store", "", "A store that no server uses: badger:<dir>, redis:<address> or config:<file>")
	cmd.Flags().String("rate", "", "The most bytes to write in a second, such as 10MB, before compression")
	cmd.Args = cobra.ExactArgs(1)
	withSignals(cmd, func(ctx context.Context, t *transfer, args []string) error {
		return t.export(ctx, args[0], archive.ExportOptions{})
	})
}

func exportCommand(cmd *cobra.Command) {
	archiveFlags(cmd, true)
	cmd.Flags().String("store", "", "A store that no server uses: badger:<dir>, redis:<address> or config:<file>")
	cmd.Flags().String("account", "", "The name of the only account")
	cmd.Flags().Bool("no-history", false, "Leave the entries of the histories out")
	cmd.Flags().String("rate", "", "The most bytes to write in a second, such as 10MB, before compression")
	cmd.Args = cobra.MaximumNArgs(1)
	withSignals(cmd, func(ctx context.Context, t *transfer, args []string) error {
		return t.export(ctx, append(args, "-")[0], archive.ExportOptions{Account: t.flags.String("account"), NoHistory: t.flags.Bool("no-history")})
	})
}

func importCommand(cmd *cobra.Command) {
	archiveFlags(cmd, true)
	cmd.Flags().String("store", "", "A store that no server uses: badger:<dir>, redis:<address> or config:<file>")
	cmd.Flags().String("account", "", "The name of the only account to import, or of the account that gets the keys of --csv")
	cmd.Flags().String("csv", "", "A CSV file with keys of another system, in place of FILE")
	cmd.Flags().StringSlice("key-prefix", nil, "With --csv: a prefix of the keys that the file has only by digest, such as acme_")
	cmd.Flags().Bool("no-history", false, "Leave the entries of the histories out")
	cmd.Flags().Bool("dry-run", false, "Check the file and the store, and write nothing")
	cmd.Args = cobra.MaximumNArgs(1)
	withSignals(cmd, func(ctx context.Context, t *transfer, args []string) error {
		if keys := t.flags.String("csv") != ""; keys == (len(args) == 1) {
			return errors.New("name either an archive, or with --csv a file of keys")
		}
		if len(args) == 0 {
			return t.importKeyFile(ctx)
		}
		o := archive.ImportOptions{Account: t.flags.String("account"), NoHistory: t.flags.Bool("no-history"), DryRun: t.flags.Bool("dry-run")}
		return t.importFile(ctx, args[0], t.flags.String("store"), o)
	})
}

func restoreCommand(cmd *cobra.Command) {
	archiveFlags(cmd, false)
	cmd.Flags().String("store", "", "The empty store: badger:<dir>, redis:<address> or config:<file>")
	cmd.Args = cobra.ExactArgs(1)
	withSignals(cmd, func(ctx context.Context, t *transfer, args []string) error {
		store := t.flags.String("store")
		if store == "" {
			return errors.New("--store: name the empty store: badger:<dir>, redis:<address> or config:<file>")
		}
		return t.importFile(ctx, args[0], store, archive.ImportOptions{EmptyOnly: true})
	})
}

func migrateCommand(cmd *cobra.Command) {
	archiveFlags(cmd, false)
	cmd.Flags().String("from", "", "The store to copy from")
	cmd.Flags().String("to", "", "The empty store to copy to")
	cmd.Flags().String("history-retention", "", "Maximum age of the copied history, such as 30d")
	cmd.Args = cobra.NoArgs
	withSignals(cmd, func(ctx context.Context, t *transfer, _ []string) error { return t.migrate(ctx) })
}

// transfer is one run of a command for archives.
type transfer struct {
	cmd      *cobra.Command
	flags    caddycmd.Flags
	json     bool
	progress *progressLine
}

// namedStore is a store that a flag names.
type namedStore struct {
	flag   string
	spec   *storeSpec
	module StoreModule
}

// named is [loadNamed] with the flags of the command.
func (t *transfer) named(ctx caddy.Context, flag, value string, exists bool) (*namedStore, error) {
	return loadNamed(ctx, flag, value, t.flags.String("adapter"), exists)
}

// loadNamed loads the module of the store that a flag names, without opening the store. With exists the store must exist.
func loadNamed(ctx caddy.Context, flag, value, adapter string, exists bool) (n *namedStore, err error) {
	n = &namedStore{flag: flag}
	if n.spec, err = parseStoreSpec(value, adapter); err == nil {
		if n.module, err = n.spec.load(ctx); err == nil && exists {
			err = isThere(n.module)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", flag, err)
	}
	return n, nil
}

// use opens a store that can be exported and imported, see [useStore].
func (t *transfer) use(n *namedStore, fn func(core.Importer) error) error {
	return useStore(t.cmd, n.flag, n.module, core.DefaultTunables(), func(s core.Store) error {
		im, ok := s.(core.Importer)
		if !ok {
			return fmt.Errorf("%s: this store cannot be copied: want badger or redis", n.flag)
		}
		return fn(im)
	})
}

// useStore opens a store that no server uses, calls fn and closes the store. What fn has written is durable only if useStore
// returns nil. Errors of the store begin with the flag that names the store.
func useStore(cmd *cobra.Command, flag string, m StoreModule, t core.Tunables, fn func(core.Store) error) (err error) {
	log := slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), &slog.HandlerOptions{Level: slog.LevelWarn}))
	s, err := m.Open(log, t, nil)
	if err != nil {
		return fmt.Errorf("%s: %w", flag, err)
	}
	defer func() {
		if closed := s.Close(); closed != nil {
			err = errors.Join(err, fmt.Errorf("%s: closing the store: %w", flag, closed))
		}
	}()
	return fn(s)
}

// export writes an archive to a file, or to the standard output for "-".
func (t *transfer) export(ctx context.Context, name string, o archive.ExportOptions) error {
	limit, err := t.rate()
	if err != nil {
		return err
	}
	o.Progress = t.progress.show
	var counts archive.Counts
	write := func(w io.Writer) (err error) {
		if limit != nil {
			w = &slowWriter{ctx, w, limit}
		}
		if store := t.flags.String("store"); store != "" {
			counts, err = t.exportStore(ctx, store, w, o)
		} else {
			counts, err = t.exportServer(ctx, w, o)
		}
		return err
	}
	if name == "-" {
		return write(t.cmd.OutOrStdout())
	}
	if err := writeFile(name, write); err != nil {
		return err
	}
	return t.summary(fmt.Sprintf("Wrote %s", name), archive.Report{Records: counts, Events: counts[archive.KindEvent]})
}

// exportStore exports a store that no server uses.
func (t *transfer) exportStore(ctx context.Context, store string, w io.Writer, o archive.ExportOptions) (counts archive.Counts, err error) {
	cctx, done := caddy.NewContext(caddy.Context{Context: ctx})
	defer done()
	n, err := t.named(cctx, "--store", store, true)
	if err != nil {
		return nil, err
	}
	o.Source = exportSource
	err = t.use(n, func(s core.Importer) error {
		counts, err = archive.Export(ctx, s, w, o)
		return err
	})
	return counts, err
}

// importPath is the path of an import on the admin endpoint.
const importPath = "import"

// exportSource is the source in the header of an archive.
const exportSource = "limitkeeper"

// exportServer lets a running server export its store.
func (t *transfer) exportServer(ctx context.Context, w io.Writer, o archive.ExportOptions) (archive.Counts, error) {
	c, err := newAdminClient(t.cmd)
	if err != nil {
		return nil, err
	}
	q := archiveQuery(o.Account, o.NoHistory)
	resp, err := caddycmd.AdminAPIRequest(c.address, http.MethodGet, adminBase+"export?"+q.Encode(), nil, nil)
	if err != nil {
		return nil, c.explain(err)
	}
	defer resp.Body.Close()
	stop := context.AfterFunc(ctx, func() { resp.Body.Close() })
	defer stop()
	return archive.Copy(w, resp.Body, func(n int64) { t.progress.show(archive.Progress{Pass: "export", Records: n}) })
}

// archiveQuery returns the query of a request for an export or import.
func archiveQuery(account string, noHistory bool) url.Values {
	q := url.Values{}
	if account != "" {
		q.Set("account", account)
	}
	if noHistory {
		q.Set("history", "false")
	}
	return q
}

// rate returns the limiter of --rate, nil for none.
func (t *transfer) rate() (*rate.Limiter, error) {
	text := t.flags.String("rate")
	if text == "" {
		return nil, nil
	}
	n, err := humanize.ParseBytes(text)
	if err != nil || n == 0 || n > 1<<40 {
		return nil, fmt.Errorf("--rate: want bytes in a second, such as 10MB, got %q", text)
	}
	return rate.NewLimiter(rate.Limit(n), slowChunk), nil
}

// slowChunk is the largest number of bytes that a slowWriter writes at once.
const slowChunk = 64 << 10

// slowWriter writes at most as fast as its limiter allows.
type slowWriter struct {
	ctx   context.Context
	w     io.Writer
	limit *rate.Limiter
}

func (w *slowWriter) Write(p []byte) (n int, err error) {
	for part := range slices.Chunk(p, slowChunk) {
		if err := w.limit.WaitN(w.ctx, len(part)); err != nil {
			return n, err
		}
		written, err := w.w.Write(part)
		n += written
		if err != nil {
			return n, err
		}
	}
	return n, nil
}

// writeFile replaces a file when write has succeeded. The content is compressed as the name says.
func writeFile(name string, write func(io.Writer) error) (err error) {
	f, err := os.CreateTemp(filepath.Dir(name), filepath.Base(name)+".partial-*") // its mode is 0600
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, f.Close(), os.Remove(f.Name()))
		}
	}()
	z, err := archive.Compress(name, f)
	if err != nil {
		return err
	}
	if err := write(z); err != nil {
		return err
	}
	if err := z.Close(); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), name); err != nil {
		return err
	}
	return f.Close()
}

// importFile imports a file into a store, or into the store of a running server.
func (t *transfer) importFile(ctx context.Context, name, store string, o archive.ImportOptions) (err error) {
	if _, err := os.Stat(name); err != nil {
		return err
	}
	o.Progress = t.progress.show
	var report archive.Report
	if store == "" {
		report, err = t.importServer(ctx, name, o)
	} else {
		report, err = t.importStore(ctx, name, store, o)
	}
	if err != nil {
		return err
	}
	done := "Imported and compared"
	if o.DryRun {
		done = "Nothing was written. The import would add"
	}
	return t.summary(done, report)
}

// importStore imports a file into a store that no server uses.
func (t *transfer) importStore(ctx context.Context, name, store string, o archive.ImportOptions) (r archive.Report, err error) {
	cctx, done := caddy.NewContext(caddy.Context{Context: ctx})
	defer done()
	n, err := t.named(cctx, "--store", store, false)
	if err != nil {
		return r, err
	}
	o.Retention = n.spec.retention
	from := archive.FromArchive(func() (io.ReadCloser, error) { return os.Open(name) })
	if err := isThere(n.module); err != nil { // the file is checked before the store is created
		if r, err = archive.CheckArchive(ctx, from, o); err != nil || o.DryRun {
			return r, err
		}
	}
	err = t.use(n, func(s core.Importer) error {
		if r.SHA256 != "" { // the check of an empty store
			r, err = archive.Write(ctx, s, from, o, r.SHA256)
		} else {
			r, err = archive.Import(ctx, s, from, o)
		}
		return err
	})
	return r, err
}

// importServer lets a running server import a file: it sends the file once to be checked, and once to be written.
func (t *transfer) importServer(ctx context.Context, name string, o archive.ImportOptions) (r archive.Report, err error) {
	c, err := newAdminClient(t.cmd)
	if err != nil {
		return r, err
	}
	c.json = false
	for _, pass := range []string{"check", "write"} {
		q := archiveQuery(o.Account, o.NoHistory)
		if pass == "write" {
			q.Set("sha256", r.SHA256)
		}
		if r, err = t.send(ctx, c, name, pass, q); err != nil || o.DryRun {
			return r, err
		}
	}
	return r, nil
}

// send sends a file to a running server.
func (t *transfer) send(ctx context.Context, c *adminClient, name, pass string, q url.Values) (r archive.Report, err error) {
	f, err := os.Open(name)
	if err != nil {
		return r, err
	}
	defer f.Close()
	text, err := archive.Decompress(f)
	if err != nil {
		return r, fmt.Errorf("%w: %w", archive.ErrDamaged, err)
	}
	defer text.Close()
	body := &countedLines{ctx: ctx, r: text, show: func(n int64) { t.progress.show(archive.Progress{Pass: pass, Records: n}) }}
	resp, err := caddycmd.AdminAPIRequest(c.address, http.MethodPost, adminBase+importPath+"?"+q.Encode(),
		http.Header{"Content-Type": {"application/x-ndjson"}}, body)
	if err != nil {
		return r, c.explain(err)
	}
	defer resp.Body.Close()
	return r, json.NewDecoder(resp.Body).Decode(&r)
}

// countedLines is a reader that shows how many lines were read.
type countedLines struct {
	ctx  context.Context
	r    io.Reader
	n    int64
	show func(int64)
}

func (c *countedLines) Read(p []byte) (int, error) {
	if err := c.ctx.Err(); err != nil {
		return 0, err
	}
	n, err := c.r.Read(p)
	c.n += int64(strings.Count(string(p[:n]), "\n"))
	c.show(c.n)
	return n, err
}

// migrate copies one store to another.
func (t *transfer) migrate(ctx context.Context) error {
	var retention time.Duration
	if s := t.flags.String("history-retention"); s != "" {
		var err error
		if retention, err = caddy.ParseDuration(s); err != nil || retention <= 0 {
			return fmt.Errorf("--history-retention: want a duration like 30d, got %q", s)
		}
	}
	cctx, done := caddy.NewContext(caddy.Context{Context: ctx})
	defer done()
	from, err := t.named(cctx, "--from", t.flags.String("from"), true)
	if err != nil {
		return err
	}
	to, err := t.named(cctx, "--to", t.flags.String("to"), false)
	if err != nil {
		return err
	}
	if from.module.PoolKey() == to.module.PoolKey() {
		return errors.New("--from and --to are the same store")
	}
	if retention == 0 {
		retention = max(from.spec.retention, to.spec.retention)
	}
	var report archive.Report
	err = t.use(from, func(source core.Importer) error {
		if _, n, err := source.Accounts(ctx, core.Page{Number: 1, Size: 1}); err != nil || n == 0 {
			return errors.Join(err, errors.New("--from: the store has no accounts: there is nothing to move"))
		}
		return t.use(to, func(target core.Importer) error {
			report, err = archive.Import(ctx, target, archive.FromStore(source, archive.ExportOptions{}),
				archive.ImportOptions{Retention: retention, EmptyOnly: true, Progress: t.progress.show})
			return err
		})
	})
	if err != nil {
		return err
	}
	return t.summary("Moved and compared", report)
}

// summary prints the numbers of records.
func (t *transfer) summary(done string, r archive.Report) error {
	t.progress.end()
	out := t.cmd.OutOrStdout()
	if t.json {
		return json.NewEncoder(out).Encode(r)
	}
	fmt.Fprintf(out, "%s:\n", done)
	for _, kind := range archive.Kinds() {
		n := humanize.Comma(r.Records[kind])
		if kept := r.Events; kind == archive.KindEvent && kept < r.Records[kind] && kept > 0 {
			n = fmt.Sprintf("%s of %s: the store keeps the newest", humanize.Comma(kept), n)
		}
		fmt.Fprintf(out, "%-12s %s\n", recordNames[kind], n)
	}
	return nil
}

// recordNames has the names of records for people.
var recordNames = map[archive.Kind]string{
	archive.KindAccount: "accounts", archive.KindOwnerKey: "owner's keys", archive.KindAccess: "sign-in data", archive.KindPlan: "plans",
	archive.KindUser: "users", archive.KindKey: "keys", archive.KindCounter: "counters", archive.KindDay: "days", archive.KindEvent: "events",
}

// progressLine shows the progress of a transfer: on a terminal one line that changes, else a line every 10 seconds.
type progressLine struct {
	out      io.Writer
	terminal bool
	last     time.Time
	shown    bool
}

func newProgressLine(out io.Writer) *progressLine {
	f, ok := out.(*os.File)
	return &progressLine{out: out, terminal: ok && term.IsTerminal(int(f.Fd())), last: time.Now()}
}

// show shows the progress, now and then.
func (p *progressLine) show(now archive.Progress) {
	every := 10 * time.Second
	if p.terminal {
		every = 200 * time.Millisecond
	}
	if time.Since(p.last) < every {
		return
	}
	p.last = time.Now()
	line := fmt.Sprintf("%s: %s records", now.Pass, humanize.Comma(now.Records))
	if now.Account != "" {
		line += ", account " + printable(now.Account)
	}
	if p.terminal {
		fmt.Fprintf(p.out, "\r\x1b[K%s", line)
		p.shown = true
		return
	}
	fmt.Fprintln(p.out, line)
}

// end ends the line on a terminal.
func (p *progressLine) end() {
	if p.shown {
		fmt.Fprintln(p.out)
		p.shown = false
	}
}

// exportArchive streams an archive of the store. A snapshot makes it one of one instant.
func exportArchive(_ *core.Service, r *http.Request) (any, error) {
	app, err := runningApp()
	if err != nil {
		return nil, err
	}
	q := r.URL.Query()
	o := archive.ExportOptions{Account: q.Get("account"), NoHistory: q.Get("history") == "false", Source: exportSource}
	l := app.live.Load()
	if o.Account != "" {
		if _, err := l.service.AccountByName(r.Context(), o.Account); err != nil {
			return nil, err
		}
	}
	s, ok := l.store.(core.Importer)
	if !ok {
		return nil, errors.New("this store cannot be exported: want badger or redis")
	}
	return stream(func(w io.Writer) error {
		if err := exportInstant(r.Context(), s, w, o); err != nil {
			return archive.WriteError(w, err)
		}
		return nil
	}), nil
}

// exportInstant exports a store that serves: an embedded store as of one instant.
func exportInstant(ctx context.Context, s core.Importer, w io.Writer, o archive.ExportOptions) (err error) {
	if b, ok := s.(*badgerstore.Store); ok {
		snapshot, failed := b.Snapshot(ctx)
		if failed != nil {
			return fmt.Errorf("a snapshot of the store: %w", failed)
		}
		defer func() { err = cmp.Or(snapshot.Close(), err) }() // the reason why the snapshot has ended comes first
		s = snapshot
	}
	_, err = archive.Export(ctx, s, w, o)
	return err
}

// importArchive checks an archive in the body of a request. With the SHA-256 that the check has returned, it writes the
// archive.
func importArchive(_ *core.Service, r *http.Request) (any, error) {
	app, err := runningApp()
	if err != nil {
		return nil, err
	}
	l := app.live.Load()
	to, ok := l.store.(core.Importer)
	if !ok {
		return nil, errors.New("this store takes no import: want badger or redis")
	}
	q := r.URL.Query()
	o := archive.ImportOptions{Account: q.Get("account"), NoHistory: q.Get("history") == "false", Retention: time.Duration(app.HistoryRetention)}
	from := archive.FromArchive(func() (io.ReadCloser, error) { return r.Body, nil })
	sum := q.Get("sha256")
	if sum == "" {
		report, err := archive.Check(r.Context(), to, from, o)
		return report, badArchive(err)
	}
	defer l.service.ForgetAll()
	report, err := archive.Write(r.Context(), to, from, o, sum)
	return report, badArchive(err)
}

// badArchive adds the HTTP status to an error of an import.
func badArchive(err error) error {
	if errors.Is(err, archive.ErrRefused) || errors.Is(err, archive.ErrDamaged) {
		return caddy.APIError{HTTPStatus: http.StatusBadRequest, Err: err}
	}
	return err
}
