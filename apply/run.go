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
	"github.com/limitkeeper/limitkeeper/core/document"
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

// maxAttempts is how often the changes of an account are worked out, when other requests change the account meanwhile.
const maxAttempts = 5

// errStale means that the account has changed since it was read.
var errStale = errors.New("the account changes all the time: run the command again")

// Run makes the accounts of a file equal to the file. It checks all accounts before it changes the first one: the error
// is [*Problems] if the file cannot be applied, and then nothing was changed.
//
// The changes of an account are stored in one transaction. A new key prefix of the account is stored before it. If an
// error comes after the first account was changed, Run returns the result, with the error as text, and no error.
func Run(ctx context.Context, svc *core.Service, f *File, o Options) (*Result, error) {
	accounts, err := f.selected(o.Account)
	if err != nil {
		return nil, err
	}
	problems := &Problems{}
	var plans []*comparison
	for _, a := range accounts {
		c, err := compare(ctx, svc, a, o, problems)
		if err != nil {
			return nil, err
		}
		plans = append(plans, c)
	}
	if err := f.withBroken(problems); err != nil {
		return nil, err
	}
	result := &Result{DryRun: o.DryRun, Accounts: []AccountResult{}}
	stored := false
	for i, c := range plans {
		if !o.DryRun {
			if c, err = c.store(ctx, o); err != nil {
				if !stored {
					return nil, err
				}
				result.Error = core.MaskSecrets(fmt.Sprintf("account %q: %v", plans[i].name, err))
				break
			}
			stored = stored || len(c.changes) > 0
		}
		result.Accounts = append(result.Accounts, AccountResult{c.name, append([]Change{}, c.changes...), append([]NewKey{}, c.made...)})
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
	*snapshot
	match   *match
	svc     *core.Service
	file    *account
	name    string
	changes []Change
	steps   []*step // those with a change
	prefix  *string // the new key prefix; nil for no change
	made    []NewKey

	newDigests map[core.Digest]*key // keys of the file whose digest their key in the account does not have
}

func (c *comparison) digests() []core.Digest { return slices.Collect(maps.Keys(c.newDigests)) }

// step is one change of a resource.
type step struct {
	at position
	do func(*run) (*Change, error) // returns nil when there is nothing to change
}

// run is one run of the steps, in a preview or in a transaction.
type run struct {
	*core.Batch
	c       *comparison
	planIDs map[string]string // by the names in the file
	userIDs map[*user]int64
	named   map[string]string // names of plans, by id
	made    []NewKey
}

// compare compares an account with the file, and adds what cannot be applied to problems.
func compare(ctx context.Context, svc *core.Service, a *account, o Options, problems *Problems) (*comparison, error) {
	c := &comparison{svc: svc, file: a, name: a.name, newDigests: map[core.Digest]*key{}}
	acct, err := svc.AccountByName(ctx, a.name)
	if errors.Is(err, core.ErrAccountNotFound) {
		problems.add(a.lineOf("account"), document.Join(a.path, "account"), fmt.Sprintf("There is no account %q: create it with limitkeeper account create", a.name))
		return c, nil
	}
	if err != nil {
		return nil, err
	}
	if c.snapshot, err = read(ctx, svc, acct, a.mayChange(o.Prune)); err != nil {
		return nil, err
	}
	if err := c.comparePrefix(ctx, problems); err != nil {
		return nil, err
	}
	before := problems.Total
	c.match = newMatch(c, o.Prune, problems)
	if problems.Total > before { // the steps would be incomplete
		return c, nil
	}
	if err := c.checkExternalIDs(ctx, problems); err != nil {
		return nil, err
	}
	return c, c.preview(ctx, problems)
}

// checkExternalIDs adds a problem for each new external id that is the value of a key of the account, or of the file, and for each new
// digest of the file that is that of the external id of a user.
func (c *comparison) checkExternalIDs(ctx context.Context, problems *Problems) error {
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
			err = cmp.Or(err, problems.refuse(u.position, core.ErrSecretExternalID))
		}
	}
	if err != nil || len(c.newDigests) == 0 {
		return err
	}
	return c.svc.EachKeyLikeExternalID(ctx, c.account.ID, func(d core.Digest, u *core.User) {
		if k := c.newDigests[d]; k != nil {
			problems.add(k.lineOf(digestMember), document.Join(k.path, digestMember), fmt.Sprintf(
				"The key is the external id of the user %d, stored in clear: give the user another external id first", u.ID))
		}
	})
}

func (c *comparison) comparePrefix(ctx context.Context, problems *Problems) error {
	if !c.file.keyPrefix.Set {
		return nil
	}
	want, had := core.DefaultKeyPrefix, c.account.PrefixOfNewKeys()
	if c.file.keyPrefix.Value != nil {
		want = *c.file.keyPrefix.Value
	}
	if want == had {
		return nil
	}
	if err := c.svc.CheckAccountPatch(ctx, c.name, core.AccountPatch{KeyPrefix: &want}); err != nil {
		return problems.refuse(c.file.position, err)
	}
	c.prefix = &want
	c.changes = append(c.changes, Change{Action: "update", Kind: "account", Name: c.name, Members: []Member{newMember("key_prefix", had, want)}})
	return nil
}

// preview runs all steps on the snapshot, and keeps the steps with a change.
func (c *comparison) preview(ctx context.Context, problems *Problems) error {
	err := c.svc.Preview(ctx, c.account.ID, c.digests(), c.snapshot, func(b *core.Batch) error {
		r := c.match.run(b)
		for _, s := range c.match.steps() {
			change, err := s.do(r)
			if err != nil {
				if err = problems.refuse(s.at, err); err != nil {
					return err
				}
				continue
			}
			if change != nil {
				c.steps = append(c.steps, s)
				c.changes = append(c.changes, *change)
			}
		}
		return nil
	})
	return problems.refuse(c.file.position, err)
}

// store stores the changes. It works them out again when another request has changed the account, and returns the
// comparison that was stored.
func (c *comparison) store(ctx context.Context, o Options) (*comparison, error) {
	for attempt := 1; ; attempt++ {
		err := c.storeOnce(ctx)
		if !errors.Is(err, errStale) || attempt == maxAttempts {
			return c, err
		}
		problems := &Problems{}
		if c, err = compare(ctx, c.svc, c.file, o, problems); err != nil {
			return c, err
		}
		if err := problems.err(); err != nil {
			return c, err
		}
	}
}

func (c *comparison) storeOnce(ctx context.Context) error {
	if c.prefix != nil { // first: the new keys have the prefix
		if _, err := c.svc.UpdateAccount(ctx, c.account.ID, core.AccountPatch{KeyPrefix: c.prefix}); err != nil {
			return err
		}
	}
	if len(c.steps) == 0 {
		return nil
	}
	err := c.svc.Batch(ctx, c.account.ID, c.digests(), func(b *core.Batch) error {
		r := c.match.run(b)
		for _, s := range c.steps {
			if _, err := s.do(r); err != nil {
				return err
			}
		}
		c.made = r.made
		return nil
	})
	if errors.Is(err, core.ErrTooLarge) {
		_, numbers, _ := strings.Cut(err.Error(), core.ErrTooLarge.Error()+": ")
		return fmt.Errorf("%d changes are too many for one transaction of this store: %s. No change of a plan, user or key was stored. Split the file", len(c.steps), numbers)
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
