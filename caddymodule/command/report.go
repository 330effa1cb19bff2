package command

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"
	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	"github.com/spf13/cobra"
	"go.uber.org/zap"

	"github.com/limitkeeper/limitkeeper/adminapi"
	"github.com/limitkeeper/limitkeeper/caddymodule"
	"github.com/limitkeeper/limitkeeper/core"
)

const reportExample = `limitkeeper usage report --month 2026-10 --csv > october.csv
  limitkeeper usage report --account acme --from 2026-10-01 --to 2026-10-08 --group-by key,day`

// reportCommand returns the command usage report.
func reportCommand() *cobra.Command {
	cmd := subcommand("report", "Prints the usage of an account, for invoices", reportExample, runReport)
	cmd.Flags().String("account", "", "The name of the account, if there are several")
	cmd.Flags().String("month", "", "The month, such as 2026-10; this month by default")
	cmd.Flags().String("from", "", "The first day, such as 2026-10-01, instead of --month")
	cmd.Flags().String("to", "", "The day after the last one, such as 2026-11-01; by default the end of the month of --from")
	cmd.Flags().String("group-by", "", "One or more of user, key, plan, meter, day and month, separated by commas; user,meter by default")
	cmd.Flags().Bool("csv", false, "Print CSV and nothing else")
	cmd.Flag("json").Usage = "Print a JSON object for each row and nothing else"
	return cmd
}

// runReport prints a report that the server makes.
func runReport(c *adminClient, _ []string) error {
	query, err := reportQuery(c.flags)
	if err != nil {
		return err
	}
	if query.Set("format", "csv"); c.json {
		query.Set("format", "ndjson")
	}
	resp, err := c.request(http.MethodGet, adminBase+"usage?"+query.Encode(), nil)
	if err != nil {
		return fmt.Errorf("reporting the usage: %w", err)
	}
	defer resp.Body.Close()
	if c.json || c.flags.Bool("csv") {
		_, err = io.Copy(c.out, resp.Body)
	} else {
		var rows [][]string
		if rows, err = csv.NewReader(resp.Body).ReadAll(); err == nil {
			return c.table(printableRows(rows))
		}
	}
	if err != nil {
		return fmt.Errorf("the report is incomplete: run the command again, and read the log of the server: %w", err)
	}
	return nil
}

// reportQuery returns the query of the request that the flags describe.
func reportQuery(flags caddycmd.Flags) (url.Values, error) {
	query := url.Values{}
	for flag, name := range map[string]string{"account": "account", "from": "from", "to": "to", "group-by": "group_by"} {
		if value := flags.String(flag); value != "" {
			query.Set(name, value)
		}
	}
	if flags.Bool("csv") && flags.Bool("json") {
		return nil, errors.New("give either --csv or --json")
	}
	if err := checkArgument("ACCOUNT", flags.String("account")); err != nil {
		return nil, err
	}
	month := flags.String("month")
	if month == "" {
		return query, nil
	}
	if query.Has("from") || query.Has("to") {
		return nil, errors.New("give either --month, or --from and --to")
	}
	first, err := time.Parse("2006-01", month)
	if err != nil {
		return nil, fmt.Errorf("--month: want a month such as 2026-10, got %q", month)
	}
	query.Set("from", first.Format(time.DateOnly))
	query.Set("to", first.AddDate(0, 1, 0).Format(time.DateOnly))
	return query, nil
}

func printableRows(rows [][]string) [][]string {
	for _, row := range rows {
		for i := range row {
			row[i] = printable(row[i])
		}
	}
	return rows
}

// reportUsage streams the report that the query describes. If the query names no account, the store must have exactly one account.
func reportUsage(running *caddymodule.OpenStore, r *http.Request) (any, error) {
	s, query := running.Service, r.URL.Query()
	q, err := adminapi.ParseReport(query, s.Today())
	if e, ok := errors.AsType[*core.Error](err); ok {
		return nil, badRequest(fmt.Errorf("--%s: %s", strings.ReplaceAll(e.Field, "_", "-"), lowerFirst(e.Detail)))
	}
	if err != nil {
		return nil, err
	}
	var of *core.Account
	if name := query.Get("account"); name != "" {
		of, err = s.OperatorAccount(r.Context(), name) // also of a disabled account: its last invoice
	} else {
		var all []*core.Account
		all, _, err = s.Accounts(r.Context(), core.Page{Number: 1, Size: core.ReadSize})
		if all = slices.DeleteFunc(all, func(a *core.Account) bool { return a.Deleting }); len(all) == 1 {
			of = all[0]
		}
	}
	switch {
	case err != nil:
		return nil, err
	case of == nil:
		return nil, badRequest(errors.New("the store has no account, or several: name one with --account"))
	}
	return stream(func(w io.Writer) error {
		counted := &countingWriter{Writer: w}
		err := adminapi.WriteReport(r.Context(), s, of.ID, q, query.Get("format") == "csv", counted)
		if err != nil && counted.n > 0 { // the answer has begun: closing the connection tells the client that the report is incomplete
			caddy.Log().Error("a report failed after its first rows", zap.Error(err))
			panic(http.ErrAbortHandler)
		}
		return adminError(err)
	}), nil
}

// countingWriter counts the bytes that it writes.
type countingWriter struct {
	io.Writer
	n int64
}

func (w *countingWriter) Write(p []byte) (int, error) {
	n, err := w.Writer.Write(p)
	w.n += int64(n)
	return n, err
}
