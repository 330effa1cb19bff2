package service

import (
	"context"
	"errors"
	"strconv"
	"strings"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/secrets"
)

// The bounds of a page.
const (
	DefaultPageSize = 10
	MaxPageSize     = 100
)

// eachUser calls fn with all users that match, and reads ReadSize at a time.
func (s *Service) eachUser(ctx context.Context, account string, f core.UserFilter, fn func(*core.User) error) error {
	return core.Each(ctx, core.ReadSize, func(p core.Page) ([]*core.User, int, error) { return s.store.Users(ctx, account, f, p) }, fn)
}

// eachKey calls fn with all keys that match, and reads ReadSize at a time.
func (s *Service) eachKey(ctx context.Context, account string, f core.KeyFilter, fn func(*core.Key) error) error {
	return core.Each(ctx, core.ReadSize, func(p core.Page) ([]*core.Key, int, error) { return s.store.Keys(ctx, account, f, p) }, fn)
}

// SearchUsers returns a page of the users that match the filter and have text in their name, email
// or external id, case-insensitive, or as their id. more reports whether there are matches after the page.
//
// The cost is linear in the users up to the end of the page. A complete email address with an empty
// filter is looked up directly.
func (s *Service) SearchUsers(ctx context.Context, account, text string, f core.UserFilter, p core.Page) (list []*core.User, more bool, err error) {
	text = strings.ToLower(strings.TrimSpace(text))
	if f == (core.UserFilter{}) && strings.Contains(text, "@") {
		if has, n, err := s.store.Users(ctx, account, core.UserFilter{Email: text}, p); n > 0 || err != nil {
			return has, false, err
		}
	}
	each := func(fn func(*core.User) error) error { return s.eachUser(ctx, account, f, fn) }
	return search(ctx, s, account, p, each, func(u *core.User) bool {
		return strings.Contains(strings.ToLower(u.Name), text) || strconv.FormatInt(u.ID, 10) == text ||
			strings.Contains(strings.ToLower(u.ExternalID), text) || u.Email != nil && strings.Contains(strings.ToLower(*u.Email), text)
	})
}

// SearchKeys returns a page of the keys that match the filter and have text in their name,
// case-insensitive, as their id or as the last four characters of their value. more reports whether
// there are matches after the page. The complete value of a key finds that key. The PlanID of the filter selects the keys
// that the plan limits, see [Service.KeysUnderPlan].
func (s *Service) SearchKeys(ctx context.Context, account, text string, f core.KeyFilter, p core.Page) (list []*core.Key, more bool, err error) {
	text = strings.TrimSpace(text)
	if whole, err := s.WellFormedKey(ctx, account, text); err != nil {
		return nil, false, err
	} else if whole {
		k, err := s.store.KeyByDigest(ctx, secrets.DigestOf(text))
		missing := errors.Is(err, core.ErrKeyNotFound) || err == nil && k.AccountID != account
		switch {
		case missing && !strings.HasPrefix(text, secrets.DefaultKeyPrefix): // a name may begin with a prefix of the account
		case missing, p.Number > 1:
			return nil, false, nil
		case err != nil:
			return nil, false, err
		default:
			return []*core.Key{k}, false, nil
		}
	}
	folded := strings.ToLower(text)
	eachKey := s.eachKey
	if shared, err := s.sharedPlan(ctx, account, f); err != nil {
		return nil, false, err
	} else if shared {
		eachKey = s.eachLimitedKey
	}
	each := func(fn func(*core.Key) error) error { return eachKey(ctx, account, f, fn) }
	return search(ctx, s, account, p, each, func(k *core.Key) bool {
		return strings.Contains(strings.ToLower(k.Name), folded) || k.ID == text || len(text) == secrets.HintLength && strings.HasSuffix(k.Hint, text)
	})
}

// errPageFull ends a search.
var errPageFull = errors.New("page full")

// search returns a page of the items that match, and whether there are more. each calls a function with all items. It is a large query:
// an account runs one at a time.
func search[T any](ctx context.Context, s *Service, account string, p core.Page, each func(func(T) error) error, matches func(T) bool) (found []T, more bool, err error) {
	skip := p.Offset()
	read := func(item T) error {
		switch {
		case !matches(item):
		case skip > 0:
			skip--
		case len(found) == p.Size:
			more = true
			return errPageFull
		default:
			found = append(found, item)
		}
		return nil
	}
	err = s.runQuery(ctx, account, wholeAccount, func() error { return each(read) })
	if errors.Is(err, errPageFull) {
		err = nil
	}
	return found, more, err
}
