package apply

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/secrets"
	"github.com/limitkeeper/limitkeeper/core/service"
)

// Options select what Run does.
type Options struct {
	Account string // the account, if the file does not name it; otherwise the only one of the file to change
	Prune   bool   // delete the resources that the file lacks
	DryRun  bool   // store nothing
}

// Result says what Run has done, or with DryRun would do.
type Result struct {
	DryRun   bool            `json:"dry_run"`
	Accounts []AccountResult `json:"accounts"`
	Error    string          `json:"error,omitempty"` // why the changes of the later accounts of the file were not stored
}

// AccountResult is the part of a [Result] for one account.
type AccountResult struct {
	Account string   `json:"account"`
	Changes []Change `json:"changes"`
	Keys    []NewKey `json:"keys"` // the new keys whose values were made; none with DryRun

	Webhooks []NewWebhook `json:"webhooks,omitempty"` // the new webhooks; none with DryRun
}

// NewKey is a new key with its value, which is shown only once.
type NewKey struct {
	ID     string `json:"id"`
	Name   string `json:"name"`
	User   string `json:"user"` // the name of the user
	UserID int64  `json:"user_id"`
	APIKey string `json:"api_key"`
}

// Changes returns the number of changes.
func (r *Result) Changes() (n int) {
	for _, a := range r.Accounts {
		n += len(a.Changes)
	}
	return n
}

// maxTries is how often the changes of an account are worked out, when other requests change the account meanwhile.
const maxTries = 5

// errStale means that the account has changed since it was read.
var errStale = errors.New("the account changes all the time: run the command again")

// Run makes the accounts of a file equal to the file. It checks all accounts before it changes the first one: the error
// is [*Problems] if the file cannot be applied, and then nothing was changed.
//
// The changes of an account are stored in one transaction. A new key prefix of the account is stored before it. If an
// error comes after the first account was changed, Run returns the result, with the error as text, and no error.
func Run(ctx context.Context, svc *service.Service, f *File, o Options) (*Result, error) {
	accounts, err := f.selected(o.Account)
	if err != nil {
		return nil, err
	}
	problems := &Problems{}
	var plans []*comparison
	for _, a := range accounts {
		c := &comparison{svc: svc, file: a, prune: o.Prune, problems: problems, others: *problems}
		if err := c.settle(ctx, false); err != nil {
			return nil, err
		}
		plans = append(plans, c)
	}
	if err := f.withBroken(problems); err != nil {
		return nil, err
	}
	result := &Result{DryRun: o.DryRun, Accounts: []AccountResult{}}
	stored := false
	for _, c := range plans {
		if !o.DryRun {
			if err := c.settle(ctx, true); err != nil {
				if !stored {
					return nil, err
				}
				result.Error = secrets.MaskSecrets(fmt.Sprintf("account %q: %v", c.file.name, err))
				break
			}
			stored = stored || len(c.changes) > 0
		}
		result.Accounts = append(result.Accounts,
			AccountResult{c.file.name, append([]Change{}, c.changes...), append([]NewKey{}, c.made...), c.hooks})
	}
	return result, nil
}

// selected returns the accounts of the file to apply.
func (f *File) selected(name string) ([]*account, error) {
	problems := &Problems{}
	name = strings.TrimSpace(name)
	if len(f.accounts) == 1 && f.accounts[0].name == "" {
		a := *f.accounts[0]
		if a.name = name; name == "" {
			problems.add(0, "", "The file names no account: add the member account, or give --account")
		}
		return []*account{&a}, problems.err()
	}
	if name == "" {
		return f.accounts, nil
	}
	i := slices.IndexFunc(f.accounts, func(a *account) bool { return a.name == name })
	if i < 0 {
		problems.add(0, "", fmt.Sprintf("The file has no account %q", name))
		return nil, problems.err()
	}
	return f.accounts[i : i+1], nil
}

// comparison is an account and its differences to a file.
type comparison struct {
	*current             // nil until the account is compared
	*service.Transaction // of the transaction that runs the steps
	svc                  *service.Service
	file                 *account
	prune                bool
	problems             *Problems // what cannot be applied, of all accounts of the file
	others               Problems  // of the accounts before
	prefix               *string   // the new key prefix; nil for no change

	earlier   Problems // before the steps
	ofAccount []Change // the change of the prefix
	changes   []Change // all
	made      []NewKey
	hooks     []NewWebhook
	planIDs   map[string]string // of the stored and of the new plans, by the names in the file
	userIDs   map[*user]int64   // the same of the users

	// What the entries of the file mean.
	planNamed  map[string]*core.Plan      // by the names that the file defines or uses; nil for new plans
	userOf     map[*user]*core.User       // nil for new users
	keyOf      map[*key]*core.Key         // nil for new keys
	hookOf     map[*webhook]*core.Webhook // nil for new webhooks
	claimed    map[*core.User]*user       // the entries in userOf, by their users
	matched    map[string]bool            // the ids of the plans that the file defines, and of the keys in keyOf and the webhooks in hookOf
	planNames  map[string]string          // of the stored and of the new plans, by id
	newDigests map[secrets.Digest]*key    // keys of the file whose digest their key in the account does not have
}

func (c *comparison) digests() []secrets.Digest { return slices.Collect(maps.Keys(c.newDigests)) }

// step is one change of a resource.
type step struct {
	at position
	do func() (*Change, error) // returns nil when there is nothing to change
}

// settle compares the account with the file, unless it is compared, and then stores the changes if store is set. When another
// request has changed the account meanwhile, it compares again.
func (c *comparison) settle(ctx context.Context, store bool) (err error) {
	for try := 1; ; try++ {
		if c.current == nil {
			err = c.compare(ctx)
		}
		if err == nil && store {
			err = c.store(ctx)
		}
		if !errors.Is(err, errStale) || try == maxTries {
			return err
		}
		c.current, err = nil, nil
	}
}

// compare compares the account with the file, and adds what cannot be applied to the problems.
func (c *comparison) compare(ctx context.Context) error {
	*c.problems, c.prefix, c.ofAccount = c.others, nil, nil
	c.planNamed, c.userOf, c.keyOf = map[string]*core.Plan{}, map[*user]*core.User{}, map[*key]*core.Key{}
	c.claimed, c.matched, c.planNames = map[*core.User]*user{}, map[string]bool{}, map[string]string{}
	c.newDigests, c.hookOf = map[secrets.Digest]*key{}, map[*webhook]*core.Webhook{}
	a := c.file
	acct, err := c.svc.AccountByName(ctx, a.name)
	if errors.Is(err, core.ErrAccountNotFound) {
		c.problems.addAt(a.position, "account", "There is no account %q: create it with limitkeeper account create", a.name)
		return nil
	}
	if err != nil {
		return err
	}
	if c.current, err = read(ctx, c.svc, acct, a.mayChange(c.prune)); err != nil {
		return err
	}
	if err := c.comparePrefix(ctx); err != nil {
		return err
	}
	before := c.problems.Total
	c.match()
	if c.problems.Total > before { // the steps would be incomplete
		return nil
	}
	if err := c.checkExternalIDs(ctx); err != nil {
		return err
	}
	return c.preview(ctx)
}

// checkExternalIDs adds a problem for each new external id that is the value of a key of the account, or of the file, and for each new
// digest of the file that is that of the external id of a user.
func (c *comparison) checkExternalIDs(ctx context.Context) error {
	var users []*user
	var ids []string
	for _, u := range c.file.users {
		id := u.patch.ExternalID.OrZero()
		if _, stored := c.holders[core.UserFilter{ExternalID: strings.TrimSpace(id)}]; !stored {
			users, ids = append(users, u), append(ids, id)
		}
	}
	secret, err := c.svc.AreKeys(ctx, c.account.ID, ids, c.digests())
	for i, u := range users {
		if secret[i] {
			err = cmp.Or(err, c.problems.refuse(u.position, core.ErrSecretExternalID))
		}
	}
	if err != nil || len(c.newDigests) == 0 {
		return err
	}
	return c.svc.EachKeyLikeExternalID(ctx, c.account.ID, func(d secrets.Digest, u *core.User) {
		if k := c.newDigests[d]; k != nil {
			c.problems.addAt(k.position, digestMember,
				"The key is the external id of the user %d, stored in clear: give the user another external id first", u.ID)
		}
	})
}

func (c *comparison) comparePrefix(ctx context.Context) error {
	if !c.file.keyPrefix.Set {
		return nil
	}
	want, had := secrets.DefaultKeyPrefix, c.account.PrefixOfNewKeys()
	if c.file.keyPrefix.Value != nil {
		want = *c.file.keyPrefix.Value
	}
	if want == had {
		return nil
	}
	if err := c.svc.CheckAccountPatch(ctx, c.file.name, core.AccountPatch{KeyPrefix: &want}); err != nil {
		return c.problems.refuse(c.file.position, err)
	}
	c.prefix = &want
	c.ofAccount = []Change{{Action: "update", Kind: "account", Name: c.file.name, Members: []Member{newMember("key_prefix", had, want)}}}
	return nil
}

// preview runs all steps in a transaction that stores nothing.
func (c *comparison) preview(ctx context.Context) error {
	c.earlier = *c.problems
	err := c.svc.Preview(ctx, c.account.ID, c.digests(), c.do)
	c.made, c.hooks = nil, nil // not stored
	return c.problems.refuse(c.file.position, err)
}

// do runs all steps, and notes the changes, the new keys and the problems. A transaction may call it more than once.
func (c *comparison) do(b *service.Transaction) error {
	*c.problems, c.changes, c.made = c.earlier, slices.Clone(c.ofAccount), nil
	c.hooks = nil
	c.Transaction, c.planIDs, c.userIDs = b, map[string]string{}, map[*user]int64{}
	for name, p := range c.planNamed {
		if p != nil {
			c.planIDs[name] = p.ID
		}
	}
	for u, found := range c.userOf {
		c.userIDs[u] = found.ID
	}
	for _, s := range c.steps() {
		change, err := s.do()
		if err == nil && change != nil {
			c.changes = append(c.changes, *change)
		}
		if err := c.problems.refuse(s.at, err); err != nil {
			return err
		}
	}
	return nil
}

// store stores the changes. It is errStale if another request has changed the account.
func (c *comparison) store(ctx context.Context) error {
	if err := c.problems.err(); err != nil {
		return err
	}
	if c.prefix != nil { // first: the new keys have the prefix
		if _, err := c.svc.UpdateAccount(ctx, c.account.ID, core.AccountPatch{KeyPrefix: c.prefix}); err != nil {
			return err
		}
	}
	n := len(c.changes) - len(c.ofAccount)
	if n == 0 {
		return nil
	}
	err := c.svc.Transact(ctx, c.account.ID, c.digests(), func(b *service.Transaction) error { return cmp.Or(c.do(b), c.problems.err()) })
	if errors.Is(err, core.ErrTooLarge) {
		_, numbers, _ := strings.Cut(err.Error(), core.ErrTooLarge.Error()+": ")
		return fmt.Errorf("%d changes are too many for one transaction of this store: %s. No change of a plan, user or key was stored. Split the file", n, numbers)
	}
	if err == nil && c.file.hasWebhooks {
		err = c.endDeliveries(ctx)
	}
	return err
}

// stillAs returns errStale unless a resource is as it was read. at returns the time of its last change.
func stillAs[K, T any](find func(K) (*T, error), id K, read *T, at func(*T) time.Time) error {
	now, err := find(id)
	switch core.ErrorCode(err) {
	case core.CodeUserNotFound, core.CodePlanNotFound, core.CodeAPIKeyNotFound:
		return errStale
	}
	if err == nil && !at(now).Equal(at(read)) {
		return errStale
	}
	return err
}

func planTime(p *core.Plan) time.Time { return p.UpdatedAt }
func userTime(u *core.User) time.Time { return u.UpdatedAt }
func keyTime(k *core.Key) time.Time   { return k.UpdatedAt }
