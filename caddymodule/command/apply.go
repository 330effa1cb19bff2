package command

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/signal"
	"strconv"
	"syscall"

	"github.com/caddyserver/caddy/v2"
	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	"github.com/spf13/cobra"

	"github.com/limitkeeper/limitkeeper/apply"
	"github.com/limitkeeper/limitkeeper/caddymodule"
	"github.com/limitkeeper/limitkeeper/core"
)

const applyHelp = `
Compares an account with a file in YAML or JSON, prints the differences, and stores
them in one transaction. A second run prints "no changes". The file - is the
standard input.

Plans, users and keys that are not in the file stay as they are; --prune deletes
them. New keys without key_sha256 get a value, which is printed once.

The exit status is 0, or 1 after an error. With --dry-run it is 2 if there are
changes.

The command talks to a running server over Caddy's admin endpoint, as the command
reload does. For a store that no server uses, name it with --store:
	badger:<dir>                    the embedded store in a directory; the store of
	                                protect is in limitkeeper, in the directory of --data
	redis:<address>[,<address>…]    Redis or Valkey without a password; servers may run
	config:<file>                   the store of a Caddyfile or JSON config
`

// applyPath is the path of the operation on the admin endpoint.
const applyPath = "apply"

// exitChanges is the exit status of a dry run that finds changes.
const exitChanges = 2

func applyCommand(cmd *cobra.Command) {
	cmd.Example = `  limitkeeper apply limits.yaml --dry-run
  limitkeeper apply limits.yaml`
	addAdminFlags(cmd)
	flags := cmd.Flags()
	flags.String("account", "", "The account, if the file does not name it; of several accounts, the only one to change")
	flags.Bool("dry-run", false, "Print the changes and store nothing")
	flags.Bool("prune", false, "Delete the plans, users and keys that are not in the file")
	flags.String("store", "", "A store that no server uses, instead of a running server")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) != 1 {
			return fmt.Errorf("wrong number of arguments; usage: %s", cmd.UseLine())
		}
		changes, err := runApply(cmd, args[0])
		if err != nil {
			return fmt.Errorf("applying %s: %w", args[0], err)
		}
		if !changes {
			return nil
		}
		cmd.SilenceErrors = true // the exit status is the message
		return caddycmd.WrapCommandFuncForCobra(func(caddycmd.Flags) (int, error) { return exitChanges, nil })(cmd, nil)
	}
}

// runApply applies a file, and reports whether a dry run has found changes.
func runApply(cmd *cobra.Command, file string) (changes bool, err error) {
	if err := checkAccount(cmd); err != nil {
		return false, err
	}
	flags := caddycmd.Flags{FlagSet: cmd.Flags()}
	o := apply.Options{Account: flags.String("account"), DryRun: flags.Bool("dry-run"), Prune: flags.Bool("prune")}
	data, err := readFile(cmd.InOrStdin(), file)
	if err != nil {
		return false, err
	}
	r, err := &apply.Result{}, error(nil)
	if store := flags.String("store"); store != "" {
		r, err = applyToStore(cmd, store, data, o)
	} else {
		err = applyToServer(cmd, data, o, r)
	}
	if r == nil || err != nil && r.Accounts == nil {
		return false, err
	}
	if err := errors.Join(printResult(cmd.OutOrStdout(), r, flags.Bool("json")), err); err != nil {
		return false, err
	}
	if r.Error != "" {
		return false, errors.New(r.Error)
	}
	return r.DryRun && r.Changes() > 0, nil
}

// readFile reads the file to apply, or the standard input for "-". It stops after the largest size.
func readFile(stdin io.Reader, file string) ([]byte, error) {
	in := stdin
	if file != "-" {
		f, err := os.Open(file)
		if err != nil {
			return nil, errors.New(lastPart(err.Error()))
		}
		defer f.Close()
		in = f
	}
	data, err := io.ReadAll(io.LimitReader(in, apply.MaxSize+1))
	if err == nil && len(data) > apply.MaxSize {
		err = fmt.Errorf("the file is larger than %d MiB", apply.MaxSize>>20)
	}
	return data, err
}

// applyToServer applies a file over the admin endpoint.
func applyToServer(cmd *cobra.Command, data []byte, o apply.Options, r *apply.Result) error {
	c, err := newAdminClient(cmd)
	if err != nil {
		return err
	}
	c.json = false // printResult prints the answer
	q := url.Values{"account": {o.Account}, "dry_run": {strconv.FormatBool(o.DryRun)}, "prune": {strconv.FormatBool(o.Prune)}}
	return c.call(http.MethodPost, applyPath+"?"+q.Encode(), bytes.NewReader(data), r)
}

// applyFile applies the file in the body.
func applyFile(running *caddymodule.OpenStore, r *http.Request) (any, error) {
	data, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, caddy.APIError{HTTPStatus: http.StatusRequestEntityTooLarge, Err: fmt.Errorf("the file is larger than %d MiB, or was cut", apply.MaxSize>>20)}
	}
	q := r.URL.Query()
	o := apply.Options{Account: q.Get("account")}
	for name, to := range map[string]*bool{"dry_run": &o.DryRun, "prune": &o.Prune} {
		if text := q.Get(name); text != "" {
			if *to, err = strconv.ParseBool(text); err != nil {
				return nil, caddy.APIError{HTTPStatus: http.StatusBadRequest, Err: fmt.Errorf("%s: want true or false, got %q", name, core.MaskSecrets(text))}
			}
		}
	}
	result, err := applyData(r.Context(), running.Service, data, o)
	if _, wrong := errors.AsType[*apply.Problems](err); wrong {
		return nil, caddy.APIError{HTTPStatus: http.StatusBadRequest, Err: err}
	}
	return result, err
}

func applyData(ctx context.Context, s *core.Service, data []byte, o apply.Options) (*apply.Result, error) {
	f, err := apply.Parse(data)
	if err != nil {
		return nil, err
	}
	return apply.Run(ctx, s, f, o)
}

// applyToStore applies a file to a store that no server uses. The result is not nil when something was stored.
func applyToStore(cmd *cobra.Command, store string, data []byte, o apply.Options) (r *apply.Result, err error) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	flags := caddycmd.Flags{FlagSet: cmd.Flags()}
	caddyCtx, done := caddy.NewContext(caddy.Context{Context: ctx})
	defer done()
	n, err := loadNamed(caddyCtx, "--store", store, flags.String("adapter"), true)
	if err != nil {
		return nil, err
	}
	err = n.use(cmd, n.tunables, func(s core.Store) error {
		service := core.NewService(s, core.Config{})
		service.Tune(n.tunables) // the caps of an account
		r, err = applyData(ctx, service, data, o)
		return err
	})
	return r, err
}

// printResult prints the changes, and the values of the new keys.
func printResult(out io.Writer, r *apply.Result, asJSON bool) error {
	if asJSON {
		return json.NewEncoder(out).Encode(r)
	}
	var b bytes.Buffer
	made := 0
	for _, a := range r.Accounts {
		if len(r.Accounts) > 1 {
			fmt.Fprintf(&b, "account %q\n", a.Account)
		}
		for _, c := range a.Changes {
			fmt.Fprintln(&b, c)
		}
		for _, k := range a.Keys {
			fmt.Fprintf(&b, "The value of key %q of user %q (%s): %s\n", k.Name, k.User, k.ID, k.APIKey)
		}
		made += len(a.Keys)
	}
	switch n := r.Changes(); {
	case n == 0:
		fmt.Fprintln(&b, "no changes")
	case r.DryRun:
		fmt.Fprintf(&b, "changes: %d, none of them stored\n", n)
	default:
		fmt.Fprintf(&b, "changes: %d, all stored\n", n)
	}
	if made > 0 {
		fmt.Fprintln(&b, "The values of new keys are shown this once.")
	}
	_, err := out.Write(b.Bytes())
	return err
}
