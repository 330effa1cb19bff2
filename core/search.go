package core

import (
	"context"
	"errors"
	"strconv"
	"strings"
)

// SearchUsers returns a page of the users that match the filter and have text in their
// name or email, without regard to case, or as their id, and whether there are more after
// it. It reads the users from the first to the last that is needed. The whole email of a
// user finds that one alone, at once, when the filter is empty.
func (s *Service) SearchUsers(ctx context.Context, account, text string, f UserFilter, p Page) ([]*User, bool, error) {
	text = strings.ToLower(strings.TrimSpace(text))
	if f == (UserFilter{}) && strings.Contains(text, "@") {
		if has, n, err := s.store.Users(ctx, account, UserFilter{Email: text}, p); n > 0 || err != nil {
			return has, false, err
		}
	}
	list := func(p Page) ([]*User, int, error) { return s.store.Users(ctx, account, f, p) }
	return search(ctx, s, account, p, list, func(u *User) bool {
		return strings.Contains(strings.ToLower(u.Name), text) || strconv.FormatInt(u.ID, 10) == text ||
			u.Email != nil && strings.Contains(strings.ToLower(*u.Email), text)
	})
}

// SearchKeys returns a page of the keys that match the filter and have text in their name,
// without regard to case, as their id or as the end of their value, and whether there are
// more after it. The value of a key finds that key.
func (s *Service) SearchKeys(ctx context.Context, account, text string, f KeyFilter, p Page) ([]*Key, bool, error) {
	text = strings.TrimSpace(text)
	if WellFormedUserSecret(text) {
		k, err := s.store.KeyByDigest(ctx, DigestOf(text))
		if errors.Is(err, ErrKeyNotFound) || err == nil && k.AccountID != account || p.Number > 1 {
			return nil, false, nil
		}
		if err != nil {
			return nil, false, err
		}
		return []*Key{k}, false, nil
	}
	folded := strings.ToLower(text)
	list := func(p Page) ([]*Key, int, error) { return s.store.Keys(ctx, account, f, p) }
	return search(ctx, s, account, p, list, func(k *Key) bool {
		return strings.Contains(strings.ToLower(k.Name), folded) || k.ID == text || len(text) == hintLength && strings.HasSuffix(k.Hint, text)
	})
}

// errEnough ends a search.
var errEnough = errors.New("enough was found")

// search returns a page of what matches, and whether there is more. An account runs one search
// at a time.
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
				return errEnough
			default:
				found = append(found, item)
			}
		}
		return nil
	}
	err = s.inTurn(ctx, account, unbounded, func() error { return eachPage(ctx, list, read) })
	if errors.Is(err, errEnough) {
		err = nil
	}
	return found, more, err
}
