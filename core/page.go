package core

import (
	"context"
	"errors"
	"math"
	"strconv"
	"strings"
)

// The bounds of a page.
const (
	DefaultPageSize = 10
	MaxPageSize     = 100
)

// Page asks for one page of a list.
type Page struct {
	Number int // from 1
	Size   int // entries on a page, from 1
}

// Offset returns the number of entries before the page. It never overflows.
func (p Page) Offset() int {
	if p.Number <= 1 {
		return 0
	}
	if p.Number-1 > math.MaxInt/max(p.Size, 1) {
		return math.MaxInt
	}
	return (p.Number - 1) * p.Size
}

// batchSize is the number of resources in each read of a long list.
const batchSize = 1000

// eachPage calls fn with the pages of a list, batchSize items each.
func eachPage[T any](ctx context.Context, list func(Page) ([]T, int, error), fn func([]T) error) error {
	for p := (Page{1, batchSize}); ; p.Number++ {
		if err := ctx.Err(); err != nil { // the caller is gone
			return err
		}
		items, _, err := list(p)
		if err != nil {
			return err
		}
		if err := fn(items); err != nil {
			return err
		}
		if len(items) < batchSize {
			return nil
		}
	}
}

// eachKey calls fn with all keys that match, batchSize at a time.
func (s *Service) eachKey(ctx context.Context, account string, f KeyFilter, fn func([]*Key) error) error {
	return eachPage(ctx, func(p Page) ([]*Key, int, error) { return s.store.Keys(ctx, account, f, p) }, fn)
}

// SearchUsers returns a page of the users that match the filter and have text in their name, email
// or external id, case-insensitive, or as their id. more reports whether there are matches after the page.
//
// The cost is linear in the users up to the end of the page. A complete email address with an empty
// filter is looked up directly.
func (s *Service) SearchUsers(ctx context.Context, account, text string, f UserFilter, p Page) (list []*User, more bool, err error) {
	text = strings.ToLower(strings.TrimSpace(text))
	if f == (UserFilter{}) && strings.Contains(text, "@") {
		if has, n, err := s.store.Users(ctx, account, UserFilter{Email: text}, p); n > 0 || err != nil {
			return has, false, err
		}
	}
	pages := func(p Page) ([]*User, int, error) { return s.store.Users(ctx, account, f, p) }
	return search(ctx, s, account, p, pages, func(u *User) bool {
		return strings.Contains(strings.ToLower(u.Name), text) || strconv.FormatInt(u.ID, 10) == text ||
			strings.Contains(strings.ToLower(u.ExternalID), text) || u.Email != nil && strings.Contains(strings.ToLower(*u.Email), text)
	})
}

// SearchKeys returns a page of the keys that match the filter and have text in their name,
// case-insensitive, as their id or as the last four characters of their value. more reports whether
// there are matches after the page. The complete value of a key finds that key. The PlanID of the filter selects the keys
// that the plan limits, see [Service.KeysUnderPlan].
func (s *Service) SearchKeys(ctx context.Context, account, text string, f KeyFilter, p Page) (list []*Key, more bool, err error) {
	text = strings.TrimSpace(text)
	if whole, err := s.WellFormedKey(ctx, account, text); err != nil {
		return nil, false, err
	} else if whole {
		k, err := s.store.KeyByDigest(ctx, DigestOf(text))
		missing := errors.Is(err, ErrKeyNotFound) || err == nil && k.AccountID != account
		switch {
		case missing && !strings.HasPrefix(text, DefaultKeyPrefix): // a name may begin with a prefix of the account
		case missing, p.Number > 1:
			return nil, false, nil
		case err != nil:
			return nil, false, err
		default:
			return []*Key{k}, false, nil
		}
	}
	folded := strings.ToLower(text)
	var plan string // selects by limits, not by the filter
	if f.PlanID != nil {
		if have, err := s.mayHavePlan(ctx, account, *f.PlanID, f.UserID); err != nil {
			return nil, false, err
		} else if have {
			plan, f.PlanID = *f.PlanID, nil
		}
	}
	limits := func(*Key) bool { return true }
	pages := func(p Page) (keys []*Key, total int, err error) {
		if plan != "" && p.Number == 1 {
			if limits, err = s.underPlan(ctx, account, plan, f.UserID); err != nil {
				return nil, 0, err
			}
		}
		return s.store.Keys(ctx, account, f, p)
	}
	return search(ctx, s, account, p, pages, func(k *Key) bool {
		return limits(k) && (strings.Contains(strings.ToLower(k.Name), folded) || k.ID == text || len(text) == hintLength && strings.HasSuffix(k.Hint, text))
	})
}

// errPageFull ends a search.
var errPageFull = errors.New("page full")

// search returns a page of the items that match, and whether there are more. It is a large query:
// an account runs one at a time.
func search[T any](ctx context.Context, s *Service, account string, p Page, list func(Page) ([]T, int, error), matches func(T) bool) (found []T, more bool, err error) {
	skip := p.Offset()
	read := func(items []T) error {
		for _, item := range items {
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
		}
		return nil
	}
	err = s.runQuery(ctx, account, wholeAccount, func() error { return eachPage(ctx, list, read) })
	if errors.Is(err, errPageFull) {
		err = nil
	}
	return found, more, err
}
