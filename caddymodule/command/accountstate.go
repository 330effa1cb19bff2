package command

import (
	"fmt"
	"net/http"
	"strings"

	"github.com/spf13/cobra"

	"github.com/limitkeeper/limitkeeper/caddymodule"
	"github.com/limitkeeper/limitkeeper/core"
)

// accountStateCommands returns the commands that rename, close and open an account.
func accountStateCommands() []*cobra.Command {
	return []*cobra.Command{
		subcommand("rename NAME NEW-NAME", "Gives an account another name", "limitkeeper account rename acme acme-europe", runAccountRename),
		subcommand("disable NAME", "Closes an account: everything of it answers as unknown, and nothing is lost", "limitkeeper account disable acme", runAccountDisable),
		subcommand("enable NAME", "Opens a disabled account again", "limitkeeper account enable acme", runAccountEnable),
	}
}

// accountStateView is an account after its name or state has changed.
type accountStateView struct {
	accountView
	Directives []string `json:"directives,omitempty"` // of the running config, that name the account
}

func runAccountRename(c *adminClient, args []string) error {
	var a accountStateView
	if err := c.call(http.MethodPost, accountPath("accounts/rename", args[0], ""), nameBody{args[1]}, &a); err != nil {
		return fmt.Errorf("renaming account %q: %w", args[0], err)
	}
	return c.printf("Account %s is now %s (%s). Its keys, sessions and links keep working.\n%s", printable(args[0]), printable(a.Name), a.ID,
		named(a.Directives, "The running configuration has the former name. Before you reload or restart, change the name in:"))
}

func runAccountDisable(c *adminClient, args []string) error {
	var a accountStateView
	if err := c.call(http.MethodPost, accountPath("accounts/disable", args[0], ""), nil, &a); err != nil {
		return fmt.Errorf("disabling account %q: %w", args[0], err)
	}
	return c.printf("Account %s is disabled: its keys, owner's keys, sessions and links answer as unknown. Nothing is lost: limitkeeper account enable brings it back.\n%s",
		printable(a.Name), named(a.Directives, "The running configuration names the account. It stays disabled after a reload or restart, and these refuse its keys:"))
}

func runAccountEnable(c *adminClient, args []string) error {
	var a accountStateView
	if err := c.call(http.MethodPost, accountPath("accounts/enable", args[0], ""), nil, &a); err != nil {
		return fmt.Errorf("enabling account %q: %w", args[0], err)
	}
	return c.printf("Account %s is enabled.\n", printable(a.Name))
}

// named returns a text with the directives that name an account, "" without any. Other nodes have configurations of their own.
func named(directives []string, text string) string {
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
