package command

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	"github.com/spf13/cobra"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/secrets"
	"github.com/limitkeeper/limitkeeper/internal/nearest"
)

// needSubcommand prints the help of a command that needs a subcommand, or returns an error for an unknown subcommand.
func needSubcommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return cmd.Help()
	}
	var known []string
	for _, sub := range cmd.Commands() {
		known = append(known, sub.Name())
	}
	return fmt.Errorf("unknown command %q for %q%s; it has %s", secrets.MaskSecrets(args[0]), cmd.CommandPath(), nearest.Hint(args[0], known), strings.Join(known, ", "))
}

// subcommand returns a command that sends requests to a running server. use has the names of the required arguments, see
// [checkArgument], and example is a command line.
func subcommand(use, short, example string, run func(*adminClient, []string) error) *cobra.Command {
	cmd := &cobra.Command{Use: use, Short: short, Example: "  " + example}
	addAdminFlags(cmd)
	cmd.RunE = func(cmd *cobra.Command, given []string) error {
		names := strings.Fields(use)[1:]
		if len(given) != len(names) {
			return fmt.Errorf("wrong number of arguments; usage: %s", cmd.UseLine())
		}
		for i, name := range names {
			if err := checkArgument(name, given[i]); err != nil {
				return err
			}
		}
		return run(newAdminClient(cmd.Context(), cmd), given)
	}
	return cmd
}

// checkArgument refuses a secret in place of a name or an id, before it gets into a request and the logs of the server. An ID has the form
// of the id of an owner's key, a KEY|USER that of a key or a user, a WEBHOOK that of a webhook, and any other argument is the name of an account. The error does not repeat the argument.
func checkArgument(name, value string) error {
	_, notNumber := strconv.ParseInt(value, 10, 64)
	wrong, want := false, "the name of an account"
	switch name {
	case "ID":
		wrong, want = !strings.HasPrefix(value, "okey_"), "the id of an owner's key, such as okey_8hw3nQ5vd2tcX6mbK4rJ: limitkeeper account key list shows them"
	case "WEBHOOK":
		wrong, want = !strings.HasPrefix(value, "wh_"), "the id of a webhook, such as wh_4fzT7rk2m9qxW8hcB1sD: limitkeeper account webhook list shows them"
	case "URL":
		want = "the URL of a webhook"
	case "KEY|USER":
		wrong, want = notNumber != nil && !strings.HasPrefix(value, "key_"), "the id of a key, such as key_8hw3nQ5vd2tcX6mbK4rJ, or of a user, a number"
	}
	switch {
	case secrets.HoldsSecret(value):
		return fmt.Errorf("an argument is the secret value of a key: want %s. Nothing was sent", want)
	case wrong:
		return fmt.Errorf("want %s. Nothing was sent", want)
	}
	return nil
}

// checkAccount is [checkArgument] for the flag --account.
func checkAccount(cmd *cobra.Command) error {
	account, _ := cmd.Flags().GetString("account")
	return checkArgument("ACCOUNT", account)
}

// addAdminFlags adds the flags of a command that sends requests to a running server.
func addAdminFlags(cmd *cobra.Command) {
	cmd.Flags().Bool("json", false, "Print JSON and nothing else")
	cmd.Flags().String("address", "", "The address of the admin endpoint, if it is not the default")
	cmd.Flags().StringP("config", "c", "", "A configuration file to take the address of the admin endpoint from")
	cmd.Flags().StringP("adapter", "a", "", "The config adapter of that file")
}

// adminClient sends the requests of a command to the admin endpoint of a running server.
type adminClient struct {
	ctx     context.Context
	actor   core.Actor // the command and its user
	address string     // "" until the first request
	json    bool
	in      io.Reader
	out     io.Writer
	err     io.Writer
	flags   caddycmd.Flags
}

func newAdminClient(ctx context.Context, cmd *cobra.Command) *adminClient {
	flags := caddycmd.Flags{FlagSet: cmd.Flags()}
	return &adminClient{ctx: ctx, actor: actorOf(cmd), json: flags.Bool("json"), in: cmd.InOrStdin(), out: cmd.OutOrStdout(), err: cmd.ErrOrStderr(), flags: flags}
}

// call sends a request to the admin endpoint with body as JSON, and decodes the response into answer. With --json call also prints
// the answer.
func (c *adminClient) call(method, path string, body, answer any) error {
	var payload io.Reader
	if body != nil {
		b, err := json.Marshal(body)
		if err != nil {
			return err
		}
		payload = bytes.NewReader(b)
	}
	if err := c.fetch(method, adminBase+path, payload, answer); err != nil || !c.json {
		return err
	}
	return json.NewEncoder(c.out).Encode(answer)
}

// fetch sends a request and decodes the response into answer.
func (c *adminClient) fetch(method, uri string, body io.Reader, answer any) error {
	resp, err := c.request(method, uri, body)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if err := json.NewDecoder(resp.Body).Decode(answer); err != nil {
		return fmt.Errorf("reading the answer of %s: %w", c.address, err)
	}
	return nil
}

// request sends a request to the admin endpoint. Caddy's client takes no context: when that of c ends, request returns, and the
// request goes on until the process ends.
func (c *adminClient) request(method, uri string, body io.Reader) (*http.Response, error) {
	if c.address == "" {
		var err error
		c.address, err = caddycmd.DetermineAdminAPIAddress(c.flags.String("address"), nil, c.flags.String("config"), c.flags.String("adapter"))
		if err != nil {
			return nil, fmt.Errorf("finding the admin endpoint: %w", err)
		}
	}
	var resp *http.Response
	var err error
	done := make(chan struct{})
	go func() {
		defer close(done)
		resp, err = caddycmd.AdminAPIRequest(c.address, method, uri, actorHeader(c.actor), body)
	}()
	select {
	case <-c.ctx.Done():
		select { // a request that still reads its body fails at once
		case <-done:
		case <-time.After(time.Second):
		}
		return nil, c.ctx.Err()
	case <-done:
		if err != nil {
			return nil, c.explain(err)
		}
		return resp, nil
	}
}

// explain returns an error of one line for a failed request to the admin endpoint.
func (c *adminClient) explain(err error) error {
	text := err.Error()
	if strings.HasPrefix(text, "performing request: ") {
		return fmt.Errorf("no server answers at the admin endpoint %s: is limitkeeper running? Name another address with --address (%s)", c.address, lastPart(text))
	}
	_, answer, ok := strings.Cut(text, "{")
	var told struct{ Error string }
	if ok && json.Unmarshal([]byte("{"+answer), &told) == nil && told.Error != "" {
		return errors.New(lowerFirst(told.Error))
	}
	return errors.New(strings.TrimSpace(text))
}

// lowerFirst returns s with a lower-case first letter, to append s to another text. An abbreviation or a code stays.
func lowerFirst(s string) string {
	if len(s) > 1 && unicode.IsUpper(rune(s[1])) {
		return s
	}
	return strings.ToLower(s[:1]) + s[1:]
}

// lastPart returns the innermost reason of an error's text.
func lastPart(s string) string { return s[strings.LastIndex(s, ": ")+len(": "):] }

// printf prints a text for people: with --json, the answer of the server is printed instead.
func (c *adminClient) printf(format string, args ...any) error {
	if c.json {
		return nil
	}
	_, err := fmt.Fprintf(c.out, format, args...)
	return err
}

// table prints rows in aligned columns, for people as printf does.
func (c *adminClient) table(rows [][]string) error {
	if c.json {
		return nil
	}
	w := tabwriter.NewWriter(c.out, 0, 0, 2, ' ', 0)
	for _, row := range rows {
		fmt.Fprintln(w, strings.Join(row, "\t"))
	}
	return w.Flush()
}

// printable replaces control characters, which could change the terminal or the columns of a table.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return unicode.ReplacementChar
		}
		return r
	}, s)
}

func shownTime(t *time.Time) string {
	if t == nil {
		return "-"
	}
	return t.UTC().Format(time.RFC3339)
}
