package command

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/spf13/cobra"

	"github.com/limitkeeper/limitkeeper/caddymodule"
	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/service"
)

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
	cmd.Example = "  limitkeeper account create acme\n  limitkeeper account sign-in acme"
	cmd.AddCommand(
		subcommand("create NAME", "Creates an account and prints its first owner's key", "limitkeeper account create acme", runAccountCreate),
		subcommand("list", "Lists the accounts", "limitkeeper account list", runAccountList),
		accountSetCommand(),
		signInCommand(),
		accountKeyCommand(),
		accountWebhookCommand(),
	)
	cmd.AddCommand(accountStateCommands()...)
}

func accountSetCommand() *cobra.Command {
	cmd := subcommand("set NAME", "Changes the settings of an account", "limitkeeper account set acme --key-prefix acme_live_", runAccountSet)
	cmd.Flags().String("key-prefix", "", "The prefix of new keys, such as acme_live_; earlier keys keep working. The default is lk_user_")
	return cmd
}

func accountKeyCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "key", Short: "Manages the owner's keys of an account", RunE: needSubcommand, Example: "  limitkeeper account key list acme"}
	create := subcommand("create ACCOUNT", "Creates another owner's key and prints it", "limitkeeper account key create acme --name deploy --role validator --expires 90d", runKeyCreate)
	create.Flags().String("name", "owner's key", "What the key is for, as lists show it")
	create.Flags().String("role", string(core.RoleOwner), "What the key may do: validator, viewer, support, editor or owner")
	create.Flags().String("expires", "", "When the key ends: a duration like 90d, or a time like 2027-01-31T00:00:00Z. The default is never")
	regenerate := subcommand("regenerate ACCOUNT ID", "Prints an owner's key in place of another, which keeps working", "limitkeeper account key regenerate acme okey_8hw3nQ5vd2tcX6mbK4rJ --grace 1h", runKeyRegenerate)
	regenerate.Flags().String("grace", graceKeep, "How long the old key works on, as in 1h: keep for until it is revoked, 0 to stop it now")
	cmd.AddCommand(
		create,
		regenerate,
		subcommand("list ACCOUNT", "Lists the owner's keys of an account, revoked ones too", "limitkeeper account key list acme", runKeyList),
		subcommand("revoke ACCOUNT ID", "Revokes an owner's key: the next request with it is refused", "limitkeeper account key revoke acme okey_8hw3nQ5vd2tcX6mbK4rJ", runKeyRevoke),
	)
	return cmd
}

func runAccountCreate(c *adminClient, args []string) error {
	var a accountView
	if err := c.call(http.MethodPost, "accounts", map[string]string{"name": args[0]}, &a); err != nil {
		return fmt.Errorf("creating account %q: %w", args[0], err)
	}
	return c.printf("Account   %s (%s)\nOwner key %s\nThe key is shown this once.\n", printable(a.Name), a.ID, a.Key)
}

func runAccountList(c *adminClient, _ []string) error {
	var as []accountView
	if err := c.call(http.MethodGet, "accounts", nil, &as); err != nil {
		return err
	}
	rows := [][]string{{"ID", "NAME", "STATUS", "KEY PREFIX", "CREATED"}}
	for _, a := range as {
		if a.Left > 0 {
			a.Status += fmt.Sprintf(", %d keys and users left", a.Left)
		}
		rows = append(rows, []string{a.ID, printable(a.Name), a.Status, a.KeyPrefix, shownTime(a.CreatedAt)})
		if a.Incomplete {
			rows[len(rows)-1][4] += "  incomplete: run the restore or import again"
		}
	}
	return c.table(rows)
}

func runAccountSet(c *adminClient, args []string) error {
	prefix := c.flags.String("key-prefix")
	if prefix == "" {
		return errors.New("nothing to set: name a prefix of new keys with --key-prefix, such as acme_live_")
	}
	var a accountView
	if err := c.call(http.MethodPatch, accountPath("accounts", args[0], ""), map[string]string{"key_prefix": prefix}, &a); err != nil {
		return fmt.Errorf("changing account %q: %w", args[0], err)
	}
	return c.printf("New keys of account %s begin with %s. Earlier keys keep working.\n", printable(a.Name), a.KeyPrefix)
}

func runKeyCreate(c *adminClient, args []string) error {
	expires, err := expiryOf(c.flags.String("expires"), time.Now())
	if err != nil {
		return err
	}
	body := newOwnerKeyBody{Name: c.flags.String("name"), Role: core.Role(c.flags.String("role")), ExpiresAt: expires}
	var k ownerKeyView
	if err := c.call(http.MethodPost, accountPath("keys", args[0], ""), body, &k); err != nil {
		return fmt.Errorf("creating a key of account %q: %w", args[0], err)
	}
	return c.printf("Owner key %s (%s)\nThe key is shown this once.\n", k.Key, k.ID)
}

// expiryOf returns the time of the flag --expires, nil for "".
func expiryOf(text string, now time.Time) (*time.Time, error) {
	if text == "" {
		return nil, nil
	}
	if at, err := time.Parse(time.RFC3339, text); err == nil {
		return &at, nil
	}
	d, err := caddy.ParseDuration(text)
	if err != nil || d <= 0 {
		return nil, fmt.Errorf("--expires: want a duration like 90d or a time like 2027-01-31T00:00:00Z, got %q", text)
	}
	return new(now.Add(d)), nil
}

func runKeyList(c *adminClient, args []string) error {
	var ks []ownerKeyView
	if err := c.call(http.MethodGet, accountPath("keys", args[0], ""), nil, &ks); err != nil {
		return fmt.Errorf("listing the keys of account %q: %w", args[0], err)
	}
	rows := [][]string{{"ID", "NAME", "ROLE", "KEY", "CREATED", "LAST USED", "WORKS UNTIL"}}
	for _, k := range ks {
		until := k.RevokedAt
		if until == nil {
			until = k.ExpiresAt
		}
		rows = append(rows, []string{k.ID, printable(k.Name), string(k.Role), k.Hint, shownTime(k.CreatedAt), shownTime(k.LastUsedAt), shownTime(until)})
	}
	return c.table(rows)
}

func runKeyRevoke(c *adminClient, args []string) error {
	var k ownerKeyView
	if err := c.call(http.MethodDelete, accountPath("keys", args[0], args[1]), nil, &k); err != nil {
		return fmt.Errorf("revoking key %s of account %q: %w", args[1], args[0], err)
	}
	return c.printf("Revoked %s (%s)\n", k.ID, k.Hint)
}

// graceKeep is the value of --grace with which the old key works until it is revoked.
const graceKeep = "keep"

func runKeyRegenerate(c *adminClient, args []string) error {
	text, body, says := c.flags.String("grace"), map[string]int64{}, "works until it is revoked"
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
	if err := c.call(http.MethodPost, accountPath("regenerate", args[0], args[1]), body, &k); err != nil {
		return fmt.Errorf("regenerating key %s of account %q: %w", args[1], args[0], err)
	}
	return c.printf("Owner key %s (%s)\nThe key is shown this once. The old one, %s, %s.\n", k.Key, k.ID, args[1], says)
}

// accountPath returns the path of an operation on an account, or on the key or user with an id in it.
func accountPath(path, account, id string) string {
	return path + "?" + url.Values{"account": {account}, "id": {id}}.Encode()
}

// accountView is an account as the admin API and the commands show it.
type accountView struct {
	ID        string     `json:"id"`
	Name      string     `json:"name"`
	Key       string     `json:"key,omitempty"` // only in the answer to its creation
	CreatedAt *time.Time `json:"created_at,omitempty"`
	KeyPrefix string     `json:"key_prefix,omitempty"` // of new keys of its users

	Status      string   `json:"status,omitempty"`       // see [core.Account.Status]
	FormerNames []string `json:"former_names,omitempty"` // the latest last
	Left        int      `json:"left,omitempty"`         // keys and users that its deletion still has to remove

	Incomplete bool `json:"incomplete,omitempty"` // its import has not finished: the server refuses its requests
}

// ownerKeyView is an owner's key as the admin API and the commands show it.
type ownerKeyView struct {
	ID        string     `json:"id"`
	Name      string     `json:"name"`
	Role      core.Role  `json:"role"`
	Key       string     `json:"key,omitempty"` // only in the answer to its creation
	Hint      string     `json:"hint,omitempty"`
	CreatedAt *time.Time `json:"created_at,omitempty"`
	ExpiresAt *time.Time `json:"expires_at,omitempty"`
	RevokedAt *time.Time `json:"revoked_at,omitempty"`

	LastUsedAt *time.Time `json:"last_used_at,omitempty"`
}

func viewAccount(a *core.Account) accountView {
	return accountView{ID: a.ID, Name: a.Name, CreatedAt: &a.CreatedAt, KeyPrefix: a.PrefixOfNewKeys(), Status: a.Status(), FormerNames: a.FormerNames,
		Incomplete: a.Incomplete()}
}

func viewOwnerKey(k *core.OwnerKey) ownerKeyView {
	return ownerKeyView{ID: k.ID, Name: k.Name, Role: k.ItsRole(), Hint: k.Hint, CreatedAt: &k.CreatedAt, ExpiresAt: k.ExpiresAt, RevokedAt: k.RevokedAt,
		LastUsedAt: k.LastUsedAt}
}

func listAccounts(o *caddymodule.OpenStore, r *http.Request) (any, error) {
	views, err := viewAll(r.Context(), viewAccount, func(p core.Page) ([]*core.Account, int, error) {
		return o.Service.Accounts(r.Context(), p)
	})
	for i := range views {
		if v := &views[i]; err == nil && v.Status == core.StatusDeleting {
			v.Left, err = o.Service.AccountSize(r.Context(), v.ID)
		}
	}
	return views, err
}

func createAccount(o *caddymodule.OpenStore, r *http.Request) (any, error) {
	body, err := bodyOf[nameBody](r, `{"name": …}`)
	if err != nil {
		return nil, err
	}
	a, _, secret, err := o.Service.CreateAccount(r.Context(), body.Name)
	if err != nil {
		return nil, err
	}
	return accountView{ID: a.ID, Name: a.Name, Key: secret}, nil
}

func updateAccount(s *service.Service, r *http.Request, account string) (any, error) {
	body, err := bodyOf[struct {
		KeyPrefix *string `json:"key_prefix"`
	}](r, `{"key_prefix": …}`)
	if err != nil {
		return nil, err
	}
	return answer(viewAccount)(s.UpdateAccount(r.Context(), account, core.AccountPatch{KeyPrefix: body.KeyPrefix}))
}

func listOwnerKeys(s *service.Service, r *http.Request, account string) (any, error) {
	return viewAll(r.Context(), viewOwnerKey, func(p core.Page) ([]*core.OwnerKey, int, error) {
		return s.OwnerKeys(r.Context(), account, p)
	})
}

func createOwnerKey(s *service.Service, r *http.Request, account string) (any, error) {
	body, err := bodyOf[newOwnerKeyBody](r, `{"name": …, "role": …, "expires_at": …}`)
	if err != nil {
		return nil, err
	}
	return newKey(s.CreateOwnerKey(r.Context(), account, core.OwnerKeySpec(body)))
}

func revokeOwnerKey(s *service.Service, r *http.Request, account string) (any, error) {
	return answer(viewOwnerKey)(s.RevokeOwnerKey(r.Context(), account, r.URL.Query().Get("id")))
}

// regenerateOwnerKey creates a key that replaces another. The old key works for grace_seconds
// more, or until it is revoked when the body has no grace_seconds.
func regenerateOwnerKey(s *service.Service, r *http.Request, account string) (any, error) {
	body, err := bodyOf[struct {
		GraceSeconds *int64 `json:"grace_seconds"`
	}](r, `{"grace_seconds": …}`)
	if err != nil {
		return nil, err
	}
	grace := time.Duration(-1)
	if s := body.GraceSeconds; s != nil {
		if *s < 0 {
			return nil, badRequest(errors.New("grace_seconds must not be negative"))
		}
		grace = time.Duration(min(*s, int64(service.MaxOwnerGrace/time.Second)+1)) * time.Second // one second over the maximum: core refuses it, and the conversion cannot overflow
	}
	return newKey(s.RegenerateOwnerKey(r.Context(), account, r.URL.Query().Get("id"), grace))
}

// newOwnerKeyBody is the body of a request that creates an owner's key.
type newOwnerKeyBody struct {
	Name      string     `json:"name"`
	Role      core.Role  `json:"role,omitempty"`
	ExpiresAt *time.Time `json:"expires_at,omitempty"`
}

// nameBody is the body of a request that creates an account.
type nameBody struct {
	Name string `json:"name"`
}

// newKey returns the answer with the value of a new owner's key.
func newKey(k *core.OwnerKey, secret string, err error) (any, error) {
	if err != nil {
		return nil, err
	}
	return ownerKeyView{ID: k.ID, Name: k.Name, Role: k.ItsRole(), ExpiresAt: k.ExpiresAt, Key: secret}, nil
}
