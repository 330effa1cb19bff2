package command

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/spf13/cobra"
	"go.uber.org/zap"

	"github.com/limitkeeper/limitkeeper/caddymodule"
	"github.com/limitkeeper/limitkeeper/core"
)

// accountStateCommands returns the commands that rename, disable, enable and delete an account.
func accountStateCommands() []*cobra.Command {
	return []*cobra.Command{
		subcommand("rename NAME NEW-NAME", "Gives an account another name", "limitkeeper account rename acme acme-europe", runAccountRename),
		subcommand("disable NAME", "Closes an account: everything of it answers as unknown, and nothing is lost", "limitkeeper account disable acme", runAccountDisable),
		subcommand("enable NAME", "Opens a disabled account again", "limitkeeper account enable acme", runAccountEnable),
		accountDeleteCommand(),
	}
}

func accountDeleteCommand() *cobra.Command {
	cmd := subcommand("delete NAME", "Deletes an account with everything in it, for ever", "limitkeeper account delete acme", runAccountDelete)
	cmd.Flags().Bool("yes", false, "Delete without asking for the name")
	return cmd
}

// accountStateView is an account after its name or state has changed.
type accountStateView struct {
	accountView
	Directives []string `json:"directives,omitempty"` // the directives of the running config that name the account
}

func runAccountRename(c *adminClient, args []string) error {
	var a accountStateView
	if err := c.call(http.MethodPost, accountPath("accounts/rename", args[0], ""), nameBody{args[1]}, &a); err != nil {
		return fmt.Errorf("renaming account %q: %w", args[0], err)
	}
	return c.printf("Account %s is now %s (%s). Its keys, sessions and links keep working.\n%s", printable(args[0]), printable(a.Name), a.ID,
		withDirectives(a.Directives, "The running configuration has the former name. Before you reload or restart, change the name in:"))
}

func runAccountDisable(c *adminClient, args []string) error {
	var a accountStateView
	if err := c.call(http.MethodPost, accountPath("accounts/disable", args[0], ""), nil, &a); err != nil {
		return fmt.Errorf("disabling account %q: %w", args[0], err)
	}
	return c.printf("Account %s is disabled: its keys, owner's keys, sessions and links answer as unknown. Nothing is lost: limitkeeper account enable brings it back.\n%s",
		printable(a.Name), withDirectives(a.Directives, "The running configuration names the account. It stays disabled after a reload or restart, and these refuse its keys:"))
}

func runAccountEnable(c *adminClient, args []string) error {
	var a accountStateView
	if err := c.call(http.MethodPost, accountPath("accounts/enable", args[0], ""), nil, &a); err != nil {
		return fmt.Errorf("enabling account %q: %w", args[0], err)
	}
	return c.printf("Account %s is enabled.\n", printable(a.Name))
}

func runAccountDelete(c *adminClient, args []string) error {
	if !c.flags.Bool("yes") {
		if err := c.confirm(args[0]); err != nil {
			return err
		}
	}
	var a accountStateView
	if err := c.call(http.MethodDelete, accountPath("accounts", args[0], ""), nil, &a); err != nil {
		return fmt.Errorf("deleting account %q: %w", args[0], err)
	}
	return c.printf("Account %s (%s) is being deleted: everything of it answers as unknown, and its name is free. limitkeeper account list shows how much is left.\n",
		printable(a.Name), a.ID)
}

// maxAnswer is the largest length of a typed name in bytes.
const maxAnswer = 4 << 10

// confirm asks for the name of an account on the standard error, and reads it from the standard input.
func (c *adminClient) confirm(name string) error {
	fmt.Fprintf(c.err, "This deletes the account %s with its users, keys, plans, usage and history, for ever.\nType its name: ", printable(name))
	typed, err := bufio.NewReader(io.LimitReader(c.in, maxAnswer)).ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if strings.TrimSpace(typed) != strings.TrimSpace(name) {
		return errors.New("nothing was deleted: the typed name is not that of the account. Without a terminal, add --yes")
	}
	return nil
}

// withDirectives returns a text followed by directives, "" without directives.
func withDirectives(directives []string, text string) string {
	if len(directives) == 0 {
		return ""
	}
	return text + "\n  " + strings.Join(directives, "\n  ") + "\nOther nodes have configurations of their own.\n"
}

// ofAnyAccount returns the handler of an operation on the account that the query names, disabled or not.
func ofAnyAccount(do func(running *caddymodule.OpenStore, r *http.Request, a *core.Account) (any, error)) adminHandler {
	return func(running *caddymodule.OpenStore, r *http.Request) (any, error) {
		a, err := running.Service.OperatorAccount(r.Context(), r.URL.Query().Get("account"))
		if err != nil {
			return nil, err
		}
		return do(running, r, a)
	}
}

func renameAccount(running *caddymodule.OpenStore, r *http.Request, a *core.Account) (any, error) {
	body, err := bodyOf[nameBody](r, `{"name": …}`)
	if err != nil {
		return nil, err
	}
	directives := running.Directives(a.Name)
	if a, err = running.Service.RenameAccount(r.Context(), a.ID, body.Name); err != nil {
		return nil, err
	}
	running.Renamed(a)
	return accountStateView{viewAccount(a), directives}, nil
}

// disableAccount returns the operation that disables an account, or enables it.
func disableAccount(disabled bool) adminHandler {
	return ofAnyAccount(func(running *caddymodule.OpenStore, r *http.Request, a *core.Account) (any, error) {
		a, err := running.Service.SetAccountDisabled(r.Context(), a.ID, disabled)
		if err != nil {
			return nil, err
		}
		return accountStateView{viewAccount(a), running.Directives(a.Name)}, nil
	})
}

// deleteAccount begins the deletion of an account, unless the running config names the account. Otherwise a gateway would refuse every key, and the global
// option would create the account again.
func deleteAccount(running *caddymodule.OpenStore, r *http.Request, a *core.Account) (any, error) {
	names := []string{a.Name}
	for _, former := range a.FormerNames { // a gateway that has not been reloaded since the account was renamed still serves it
		if _, err := running.Store.AccountByName(r.Context(), former); errors.Is(err, core.ErrAccountNotFound) {
			names = append(names, former)
		}
	}
	if directives := running.Directives(names...); len(directives) > 0 {
		return nil, caddy.APIError{HTTPStatus: http.StatusConflict, Err: fmt.Errorf("the running configuration names the account: remove %s and reload, on every node. Otherwise the next start would make the account again or refuse its keys",
			strings.Join(directives, " and "))}
	}
	a, err := running.Service.DeleteAccount(r.Context(), a.ID)
	if err != nil {
		return nil, err
	}
	caddy.Log().Named("limitkeeper").Info("the deletion of an account has begun", zap.String("account", a.ID), zap.String("name", a.Name), // its audit log goes, too
		zap.String("by", core.ActorOf(r.Context()).Name))
	return accountStateView{accountView: viewAccount(a)}, nil
}
