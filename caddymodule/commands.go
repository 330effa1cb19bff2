package caddymodule

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	"github.com/spf13/cobra"
)

func init() {
	caddycmd.RegisterCommand(caddycmd.Command{
		Name:      "account",
		Usage:     "create|list|set|sign-in|key",
		Short:     "Manages accounts and their owner's keys on a running server",
		Long:      accountHelp,
		CobraFunc: accountCommand,
	})
}

const accountHelp = `
An account is a company whose API is protected. It has users, plans and keys of
its own, and manages them over the REST API with an owner's key.

These commands speak to a running server over Caddy's admin endpoint, as the
command reload does. A key is printed once, when it is made: only a digest of it
is kept.
`

// accountCommand adds the subcommands of the command account.
func accountCommand(cmd *cobra.Command) {
	cmd.RunE = needSubcommand
	cmd.AddCommand(
		subcommand("create NAME", "Creates an account and prints its first owner's key", "NAME", runAccountCreate),
		subcommand("list", "Lists the accounts", "", runAccountList),
		accountSetCommand(),
		signInCommand(),
		accountKeyCommand(),
	)
}

func accountSetCommand() *cobra.Command {
	cmd := subcommand("set NAME", "Changes the settings of an account", "NAME", runAccountSet)
	cmd.Flags().String("key-prefix", "", "The prefix of new keys, such as acme_live_; earlier keys keep working. The default is lk_user_")
	return cmd
}

func accountKeyCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "key", Short: "Manages the owner's keys of an account", RunE: needSubcommand}
	create := subcommand("create ACCOUNT", "Creates another owner's key and prints it", "ACCOUNT", runKeyCreate)
	create.Flags().String("name", "owner's key", "What the key is for, as lists show it")
	regenerate := subcommand("regenerate ACCOUNT ID", "Prints an owner's key in place of another, which keeps working", "ACCOUNT ID", runKeyRegenerate)
	regenerate.Flags().String("grace", graceKeep, "How long the old key works on, as in 1h: keep for until it is revoked, 0 to stop it now")
	cmd.AddCommand(
		create,
		regenerate,
		subcommand("list ACCOUNT", "Lists the owner's keys of an account, revoked ones too", "ACCOUNT", runKeyList),
		subcommand("revoke ACCOUNT ID", "Revokes an owner's key: the next request with it is refused", "ACCOUNT ID", runKeyRevoke),
	)
	return cmd
}

// needSubcommand prints the help of a command that needs a subcommand, or returns an error for an unknown subcommand.
func needSubcommand(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return fmt.Errorf("unknown command %q for %q: see %s --help", args[0], cmd.CommandPath(), cmd.CommandPath())
	}
	return cmd.Help()
}

// subcommand returns a command that sends requests to a running server. args has the names of the required arguments.
func subcommand(use, short, args string, run func(*adminClient, []string) error) *cobra.Command {
	cmd := &cobra.Command{Use: use, Short: short}
	addAdminFlags(cmd)
	cmd.RunE = func(cmd *cobra.Command, given []string) error {
		if want := strings.Fields(args); len(given) != len(want) {
			return fmt.Errorf("wrong number of arguments; usage: %s", cmd.UseLine())
		}
		c, err := newAdminClient(cmd)
		if err != nil {
			return err
		}
		return run(c, given)
	}
	return cmd
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
	address string
	json    bool
	out     io.Writer
	flags   interface{ GetString(string) (string, error) }
}

func newAdminClient(cmd *cobra.Command) (*adminClient, error) {
	flags := cmd.Flags()
	address, _ := flags.GetString("address")
	config, _ := flags.GetString("config")
	adapter, _ := flags.GetString("adapter")
	asJSON, _ := flags.GetBool("json")
	address, err := caddycmd.DetermineAdminAPIAddress(address, nil, config, adapter)
	if err != nil {
		return nil, fmt.Errorf("finding the admin endpoint: %w", err)
	}
	return &adminClient{address: address, json: asJSON, out: cmd.OutOrStdout(), flags: flags}, nil
}

// call sends a request to the admin endpoint and decodes the response into answer. With --json it also prints the
// response.
func (c *adminClient) call(method, path string, body, answer any) error {
	if body == nil {
		return c.send(method, path, nil, answer)
	}
	b, err := json.Marshal(body)
	if err != nil {
		return err
	}
	return c.send(method, path, bytes.NewReader(b), answer)
}

// send is [adminClient.call] with a body as it is.
func (c *adminClient) send(method, path string, payload io.Reader, answer any) error {
	resp, err := caddycmd.AdminAPIRequest(c.address, method, adminBase+path, nil, payload)
	if err != nil {
		return c.explain(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err == nil {
		err = json.Unmarshal(b, answer)
	}
	if err != nil {
		return fmt.Errorf("reading the answer of %s: %w", c.address, err)
	}
	if c.json {
		_, err = fmt.Fprintf(c.out, "%s\n", bytes.TrimSpace(b))
	}
	return err
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

// lowerFirst returns s with a lower-case first letter, to append s to another text. An abbreviation stays.
func lowerFirst(s string) string {
	if strings.HasPrefix(s, "API ") {
		return s
	}
	return strings.ToLower(s[:1]) + s[1:]
}

// lastPart returns the innermost reason of an error's text.
func lastPart(s string) string { return s[strings.LastIndex(s, ": ")+len(": "):] }

func runAccountCreate(c *adminClient, args []string) error {
	var a accountView
	if err := c.call(http.MethodPost, "accounts", map[string]string{"name": args[0]}, &a); err != nil {
		return fmt.Errorf("creating account %q: %w", args[0], err)
	}
	if c.json {
		return nil
	}
	_, err := fmt.Fprintf(c.out, "Account   %s (%s)\nOwner key %s\nThe key is shown this once.\n", printable(a.Name), a.ID, a.Key)
	return err
}

func runAccountList(c *adminClient, _ []string) error {
	var as []accountView
	if err := c.call(http.MethodGet, "accounts", nil, &as); err != nil || c.json {
		return err
	}
	rows := [][]string{{"ID", "NAME", "KEY PREFIX", "CREATED"}}
	for _, a := range as {
		rows = append(rows, []string{a.ID, printable(a.Name), a.KeyPrefix, shownTime(a.CreatedAt)})
	}
	return c.table(rows)
}

func runAccountSet(c *adminClient, args []string) error {
	prefix, err := c.flags.GetString("key-prefix")
	if err != nil {
		return err
	}
	if prefix == "" {
		return errors.New("nothing to set: name a prefix of new keys with --key-prefix, such as acme_live_")
	}
	var a accountView
	path := "accounts?" + url.Values{"account": {args[0]}}.Encode()
	if err := c.call(http.MethodPatch, path, map[string]string{"key_prefix": prefix}, &a); err != nil {
		return fmt.Errorf("changing account %q: %w", args[0], err)
	}
	if c.json {
		return nil
	}
	_, err = fmt.Fprintf(c.out, "New keys of account %s begin with %s. Earlier keys keep working.\n", printable(a.Name), a.KeyPrefix)
	return err
}

func runKeyCreate(c *adminClient, args []string) error {
	name, err := c.flags.GetString("name")
	if err != nil {
		return err
	}
	var k ownerKeyView
	if err := c.call(http.MethodPost, keysPath(args[0], ""), map[string]string{"name": name}, &k); err != nil {
		return fmt.Errorf("creating a key of account %q: %w", args[0], err)
	}
	if c.json {
		return nil
	}
	_, err = fmt.Fprintf(c.out, "Owner key %s (%s)\nThe key is shown this once.\n", k.Key, k.ID)
	return err
}

func runKeyList(c *adminClient, args []string) error {
	var ks []ownerKeyView
	if err := c.call(http.MethodGet, keysPath(args[0], ""), nil, &ks); err != nil {
		return fmt.Errorf("listing the keys of account %q: %w", args[0], err)
	}
	if c.json {
		return nil
	}
	rows := [][]string{{"ID", "NAME", "KEY", "CREATED", "LAST USED", "WORKS UNTIL"}}
	for _, k := range ks {
		until := k.RevokedAt
		if until == nil {
			until = k.ExpiresAt
		}
		rows = append(rows, []string{k.ID, printable(k.Name), k.Hint, shownTime(k.CreatedAt), shownTime(k.LastUsedAt), shownTime(until)})
	}
	return c.table(rows)
}

func runKeyRevoke(c *adminClient, args []string) error {
	var k ownerKeyView
	if err := c.call(http.MethodDelete, keysPath(args[0], args[1]), nil, &k); err != nil {
		return fmt.Errorf("revoking key %s of account %q: %w", args[1], args[0], err)
	}
	if c.json {
		return nil
	}
	_, err := fmt.Fprintf(c.out, "Revoked %s (%s)\n", k.ID, k.Hint)
	return err
}

// graceKeep is the value of --grace with which the old key works until it is revoked.
const graceKeep = "keep"

func runKeyRegenerate(c *adminClient, args []string) error {
	text, err := c.flags.GetString("grace")
	if err != nil {
		return err
	}
	body, says := map[string]int64{}, "works until it is revoked"
	if text != graceKeep {
		grace, err := time.ParseDuration(text)
		if err != nil || grace < 0 {
			return fmt.Errorf("--grace: want keep, 0 or a duration like 24h, got %q", text)
		}
		body["grace_seconds"], says = int64((grace+time.Second-1)/time.Second), "works for another "+grace.String()
		if grace == 0 {
			says = "has stopped working"
		}
	}
	var k ownerKeyView
	path := "regenerate" + strings.TrimPrefix(keysPath(args[0], args[1]), "keys")
	if err := c.call(http.MethodPost, path, body, &k); err != nil {
		return fmt.Errorf("regenerating key %s of account %q: %w", args[1], args[0], err)
	}
	if c.json {
		return nil
	}
	_, err = fmt.Fprintf(c.out, "Owner key %s (%s)\nThe key is shown this once. The old one, %s, %s.\n", k.Key, k.ID, args[1], says)
	return err
}

// keysPath returns the path of the key with an id, or of all keys of an account when id is "".
func keysPath(account, id string) string {
	q := url.Values{"account": {account}}
	if id != "" {
		q.Set("id", id)
	}
	return "keys?" + q.Encode()
}

// table prints rows in aligned columns.
func (c *adminClient) table(rows [][]string) error {
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
