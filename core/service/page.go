package service

import (
	"cmp"
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

// maxSearchedList is the number of users or keys of a list that a search reads.
const maxSearchedList = 10_000

// Searched is the point at which a search in a list ended.
type Searched struct {
	More bool // there are matches after the page
	Read int  // the number of items that were read, if the search stopped before the end of the list: there may be more matches; else 0
}

// SearchUsers returns a page of the users that match the filter and have text in their name, email
// or external id, case-insensitive. If the filter is empty and the text is a whole email, external id or id, SearchUsers looks it up in an index
// and returns this user alone. Otherwise it reads the first 10,000 users of the filter.
func (s *Service) SearchUsers(ctx context.Context, account, text string, f core.UserFilter, p core.Page) (list []*core.User, end Searched, err error) {
	text = strings.TrimSpace(text)
	if f == (core.UserFilter{}) && text != "" {
		l := lookUp{s: s, ctx: ctx, account: account, text: text}
		if err := cmp.Or(l.byUserID(), l.byMembersOfUser()); err != nil {
			return nil, end, err
		}
		for _, m := range l.matches {
			list = append(list, m.User)
		}
		if len(list) > 0 {
			return list[min(p.Offset(), len(list)):], end, nil
		}
	}
	folded := strings.ToLower(text)
	page := func(p core.Page) ([]*core.User, int, error) { return s.store.Users(ctx, account, f, p) }
	return search(ctx, s, account, p, page, func(u *core.User) bool {
		return strings.Contains(strings.ToLower(u.Name), folded) || strconv.FormatInt(u.ID, 10) == text ||
			strings.Contains(strings.ToLower(u.ExternalID), folded) || u.Email != nil && strings.Contains(strings.ToLower(*u.Email), folded)
	})
}

// SearchKeys returns a page of the keys that match the filter and have text in their name, case-insensitive. If the text is the value of a key,
// SearchKeys returns this key alone. If the filter is empty and the text is an id, a hint or the last four characters of a value, SearchKeys looks it up in
// an index and returns these keys alone. Otherwise it reads the first 10,000 keys of the filter. The PlanID of the filter selects the keys that the plan
// limits, see [Service.KeysUnderPlan].
func (s *Service) SearchKeys(ctx context.Context, account, text string, f core.KeyFilter, p core.Page) (list []*core.Key, end Searched, err error) {
	text = strings.TrimSpace(text)
	if whole, err := s.WellFormedKey(ctx, account, text); err != nil {
		return nil, end, err
	} else if whole {
		k, err := s.store.KeyByDigest(ctx, secrets.DigestOf(text))
		missing := errors.Is(err, core.ErrKeyNotFound) || err == nil && k.AccountID != account
		switch {
		case missing && !strings.HasPrefix(text, secrets.DefaultKeyPrefix): // a name may begin with a prefix of the account
		case missing, p.Number > 1:
			return nil, end, nil
		case err != nil:
			return nil, end, err
		default:
			return []*core.Key{k}, end, nil
		}
	}
	if f == (core.KeyFilter{}) && text != "" {
		l := lookUp{s: s, ctx: ctx, account: account, text: text}
		_, err := l.byHint()
		if err := cmp.Or(l.byKeyID(), err); err != nil {
			return nil, end, err
		}
		for _, m := range l.matches {
			list = append(list, m.Key)
		}
		if len(list) > 0 {
			end.More = p.Offset()+p.Size < len(list)
			return list[min(p.Offset(), len(list)):min(p.Offset()+p.Size, len(list))], end, nil
		}
	}
	f, under, err := s.underPlan(ctx, account, f)
	if err != nil {
		return nil, end, err
	}
	folded := strings.ToLower(text)
	page := func(p core.Page) ([]*core.Key, int, error) { return s.store.Keys(ctx, account, f, p) }
	return search(ctx, s, account, p, page, func(k *core.Key) bool {
		found := strings.Contains(strings.ToLower(k.Name), folded) || k.ID == text || len(text) == secrets.HintLength && strings.HasSuffix(k.Hint, text)
		return found && (under == nil || under(k))
	})
}

// search returns a page of the items of a list that match, and the point at which it ended. It is a large query: an account runs one at a time.
func search[T any](ctx context.Context, s *Service, account string, p core.Page, list func(core.Page) ([]T, int, error), matches func(T) bool) (found []T, end Searched, err error) {
	skip, read := p.Offset(), 0
	stop := errors.New("the search has ended")
	err = s.runQuery(ctx, account, wholeAccount, func() error {
		return core.Each(ctx, core.ReadSize, list, func(item T) error {
			if read == maxSearchedList {
				end.Read = read
				return stop
			}
			read++
			switch {
			case !matches(item):
			case skip > 0:
				skip--
			case len(found) == p.Size:
				end.More = true
				return stop
			default:
				found = append(found, item)
			}
			return nil
		})
	})
	if err == stop {
		err = nil
	}
	return found, end, err
}
