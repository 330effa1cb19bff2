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

// Offset returns how many entries lie before the page. It never overflows.
func (p Page) Offset() int {
	if p.Number <= 1 {
		return 0
	}
	if p.Number-1 > math.MaxInt/max(p.Size, 1) {
		return math.MaxInt
	}
	return (p.Number - 1) * p.Size
}

// batchSize is how many resources are read at a time where all are needed.
const batchSize = 1000

func eachPage[T any](ctx context.Context, list func(Page) ([]T, int, error), fn func([]T) error) error {
	for p := (Page{1, batchSize}); ; p.Number++ {
		if err := ctx.Err(); err != nil { // nobody waits for it any more
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

// eachKey calls fn with all keys that match, a batch at a time.
func (s *Service) eachKey(ctx context.Context, account string, f KeyFilter, fn func([]*Key) error) error {
	return eachPage(ctx, func(p Page) ([]*Key, int, error) { return s.store.Keys(ctx, account, f, p) }, fn)
}

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

// errPageFull ends a search.
var errPageFull = errors.New("enough was found")

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
				return errPageFull
			default:
				found = append(found, item)
			}
		}
		return nil
	}
	err = s.runQuery(ctx, account, manyCounters, func() error { return eachPage(ctx, list, read) })
	if errors.Is(err, errPageFull) {
		err = nil
	}
	return found, more, err
}
