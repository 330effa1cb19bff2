package migrate

import (
	"context"
	"errors"

	"github.com/limitkeeper/limitkeeper/core"
)

// survey is what is in the history of a user and in those of its keys, in numbers.
type survey struct {
	user  int64
	total int            // entries in the user's history
	byKey map[string]int // of each key

	// keys are the totals of the keys that the user has, those without entries left out.
	// moved are those of them that have entries which the user's history has not, because
	// they were another's, or that may have let go of some.
	keys  map[string]int
	moved []*movedKey

	strangers map[string]int64 // keys in the user's history that are another's now, or 0: deleted
}

// movedKey is a key whose history is to be read beside that of its user.
type movedKey struct {
	id     string
	total  int
	byUser map[int64]int
}

// entangled reports whether there is more to be looked at than the history of this user.
func (s *survey) entangled() bool { return len(s.moved) > 0 || len(s.strangers) > 0 }

// survey reads the history of a user, and of its keys as far as it must.
func (h *histories) survey(ctx context.Context, user int64) (*survey, error) {
	s := &survey{user: user, byKey: map[string]int{}, keys: map[string]int{}, strangers: map[string]int64{}}
	err := h.eachEntry(ctx, ofUser(h.account, user), func(e *core.Entry) {
		s.total++
		s.byKey[e.KeyID]++
	})
	if err != nil {
		return nil, err
	}
	err = each(ctx, h.o.page, keysOfUser(ctx, h.from, h.account, user), func(k *core.Key) error {
		return h.surveyKey(ctx, s, k.ID)
	})
	if err != nil {
		return nil, err
	}
	for id := range s.byKey {
		if _, its := s.keys[id]; its {
			continue
		}
		k, err := h.from.Key(ctx, h.account, id)
		switch {
		case errors.Is(err, core.ErrKeyNotFound):
			s.strangers[id] = 0
		case err != nil:
			return nil, err
		default:
			s.strangers[id] = k.UserID
		}
	}
	return s, nil
}

// surveyKey looks at the history of a key that the user has.
func (h *histories) surveyKey(ctx context.Context, s *survey, id string) error {
	of := ofKey(h.account, id)
	_, n, err := h.from.History(ctx, of, h.since, core.Page{Number: 1, Size: 1})
	if err != nil {
		return err
	}
	if n > 0 || s.byKey[id] > 0 {
		s.keys[id] = n
	}
	if full := h.fromCap > 0 && n >= h.fromCap; n == s.byKey[id] && !full {
		return nil
	}
	k := &movedKey{id: id, byUser: map[int64]int{}}
	err = h.eachEntry(ctx, of, func(e *core.Entry) {
		k.total++
		k.byUser[e.UserID]++
	})
	s.moved = append(s.moved, k)
	return err
}

// eachEntry calls fn with every entry of a history of the source, newest first.
func (h *histories) eachEntry(ctx context.Context, of core.CounterID, fn func(*core.Entry)) error {
	list := func(p core.Page) ([]core.Entry, int, error) { return h.from.History(ctx, of, h.since, p) }
	return eachPage(ctx, h.o.read, list, func(entries []core.Entry) error {
		for i := range entries {
			fn(&entries[i])
		}
		return nil
	})
}
