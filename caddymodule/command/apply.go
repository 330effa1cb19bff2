package command

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"

	"github.com/caddyserver/caddy/v2"
	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	"github.com/spf13/cobra"

	"github.com/limitkeeper/limitkeeper/apply"
	"github.com/limitkeeper/limitkeeper/caddymodule"
	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/secrets"
	"github.com/limitkeeper/limitkeeper/core/service"
)

const applyHelp = `
Compares an account with a file in YAML or JSON, prints the differences, and stores
them in one transaction. A second run prints "no changes". The file - is the
standard input.

Webhooks, plans, users and keys that are not in the file stay as they are; --prune
deletes them. New keys without key_sha256 get a value, and new webhooks a secret:
each is printed once.

The exit status is 0, or 1 after an error. With --dry-run it is 2 if there are
changes. With --store redis:…, servers may run.
` + archiveHelp

// applyPath is the path of the operation on the admin endpoint.
const applyPath = "apply"

// exitChanges is the exit status of a dry run that finds changes.
const exitChanges = 2

func applyCommand(cmd *cobra.Command) {
	cmd.Example = `  limitkeeper apply limits.yaml --dry-run
  limitkeeper apply limits.yaml`
	archiveFlags(cmd, true)
	flags := cmd.Flags()
	flags.String("account", "", "The account, if the file does not name it; of several accounts, the only one to change")
	flags.Bool("dry-run", false, "Print the changes and store nothing")
	flags.Bool("prune", false, "Delete the webhooks, plans, users and keys that are not in the file")
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if len(args) != 1 {
			return fmt.Errorf("wrong number of arguments; usage: %s", cmd.UseLine())
		}
		return nil
	}
	var data []byte
	cmd.PreRunE = func(cmd *cobra.Command, args []string) (err error) { // Ctrl-C still ends a read of the terminal
		if data, err = readFile(cmd.InOrStdin(), args[0]); err != nil {
			return fmt.Errorf("applying %s: %w", args[0], err)
		}
		return nil
	}
	withSignals(cmd, func(ctx caddy.Context, t *transfer, args []string) error {
		changes, err := t.apply(ctx, data)
		if err != nil {
			return fmt.Errorf("applying %s: %w", args[0], err)
		}
		if !changes {
			return nil
		}
		cmd.SilenceErrors = true // the exit status is the message
		return caddycmd.WrapCommandFuncForCobra(func(caddycmd.Flags) (int, error) { return exitChanges, nil })(cmd, nil)
	})
}

// apply applies a file, and reports whether a dry run has found changes.
func (t *transfer) apply(ctx caddy.Context, data []byte) (changes bool, err error) {
	o := apply.Options{Account: t.flags.String("account"), DryRun: t.flags.Bool("dry-run"), Prune: t.flags.Bool("prune")}
	r := &apply.Result{}
	if store := t.flags.String("store"); store != "" {
		err = t.useService(ctx, store, func(ctx context.Context, s *service.Service, _ core.Importer) error {
			r, err = applyData(ctx, s, data, o) // not nil when something was stored
			return err
		})
	} else {
		q := url.Values{"account": {o.Account}, "dry_run": {strconv.FormatBool(o.DryRun)}, "prune": {strconv.FormatBool(o.Prune)}}
		err = t.fetch(http.MethodPost, adminBase+applyPath+"?"+q.Encode(), bytes.NewReader(data), r)
	}
	if r == nil || err != nil && r.Accounts == nil {
		return false, err
	}
	if err := errors.Join(t.print(r, applyReport(r)), err); err != nil {
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
				return nil, badRequest(fmt.Errorf("%s: want true or false, got %q", name, secrets.MaskSecrets(text)))
			}
		}
	}
	result, err := applyData(r.Context(), running.Service, data, o)
	if _, wrong := errors.AsType[*apply.Problems](err); wrong {
		return nil, badRequest(err)
	}
	return result, err
}

func applyData(ctx context.Context, s *service.Service, data []byte, o apply.Options) (*apply.Result, error) {
	f, err := apply.Parse(data)
	if err != nil {
		return nil, err
	}
	return apply.Run(ctx, s, f, o)
}

// applyReport describes the changes, with the values of the new keys.
func applyReport(r *apply.Result) string {
	var b strings.Builder
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
		for _, w := range a.Webhooks {
			fmt.Fprintf(&b, "The secret of webhook %q (%s): %s\n", w.URL, w.ID, w.Secret)
		}
		made += len(a.Keys) + len(a.Webhooks)
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
		fmt.Fprintln(&b, "The values of new keys and webhooks are shown this once.")
	}
	return b.String()
}
