package migrate

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/limitkeeper/limitkeeper/core"
)

// writer appends entries to the histories of the target, those of one user together. The
// key of an entry is put with the user of the entry: back to where it was at the time.
type writer struct {
	*histories
	batch []core.Entry

	places map[string]int64 // with whom keys are on the target, as far as it was asked
	away   map[string]bool  // keys that are not with their users
	put    stubs            // what is no more, and is to be deleted again
}

func newWriter(h *histories) *writer {
	return &writer{histories: h, places: map[string]int64{}, away: map[string]bool{}}
}

// append appends an entry, soon.
func (w *writer) append(ctx context.Context, e *core.Entry) error {
	if len(w.batch) == core.MaxImport || len(w.batch) > 0 && w.batch[0].UserID != e.UserID {
		if err := w.flush(ctx); err != nil {
			return err
		}
	}
	if at, known := w.places[e.KeyID]; !known || at != e.UserID {
		if err := w.place(ctx, e, known); err != nil {
			return err
		}
	}
	w.batch = append(w.batch, *e)
	return nil
}

// flush appends what was collected.
func (w *writer) flush(ctx context.Context) error {
	if len(w.batch) == 0 {
		return nil
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := w.to.AppendHistory(ctx, w.account, w.batch, w.o.Retention); err != nil {
		return err
	}
	w.progress.entries(int64(len(w.batch)), 0)
	w.batch = w.batch[:0]
	return nil
}

// place makes sure that the key of an entry is with its user. Both may be stubs. What was
// collected is appended before anything is moved.
func (w *writer) place(ctx context.Context, e *core.Entry, known bool) error {
	k, err := w.from.Key(ctx, w.account, e.KeyID)
	deleted := errors.Is(err, core.ErrKeyNotFound)
	if err != nil && !deleted {
		return err
	}
	w.places[e.KeyID] = e.UserID
	if !known && !deleted && k.UserID == e.UserID {
		return nil // as it was put with all others
	}
	if err := w.flush(ctx); err != nil {
		return err
	}
	if err := w.placeUser(ctx, e.UserID); err != nil {
		return err
	}
	if deleted {
		if k, err = w.stub(ctx, e.KeyID, known); err != nil {
			return err
		}
	} else {
		w.away[k.ID] = true
	}
	k.UserID = e.UserID
	if err := putAll(ctx, w.migration, w.account, []*core.Key{k}, core.Tx.PutKey); err != nil {
		return fmt.Errorf("key %s with %s: %w", k.ID, nameOfUser(e.UserID), err)
	}
	return nil
}

// placeUser makes sure that a user is there.
func (w *writer) placeUser(ctx context.Context, id int64) error {
	if slices.Contains(w.put.users, id) {
		return nil
	}
	_, err := w.from.User(ctx, w.account, id)
	if !errors.Is(err, core.ErrUserNotFound) {
		return err
	}
	w.put.users = append(w.put.users, id)
	return putAll(ctx, w.migration, w.account, []*core.User{stubUser(w.account, id)}, core.Tx.PutUser)
}

// stub returns the stub of a deleted key, the same one as before if it is there.
func (w *writer) stub(ctx context.Context, id string, put bool) (*core.Key, error) {
	if put {
		return w.to.Key(ctx, w.account, id)
	}
	seq, err := w.gaps.take()
	if err != nil {
		return nil, err
	}
	w.put.keys = append(w.put.keys, id)
	return stubKey(w.account, id, seq, 0), nil
}

// finish appends what is left, brings the keys back to their users and removes the stubs.
func (w *writer) finish(ctx context.Context) error {
	if err := w.flush(ctx); err != nil {
		return err
	}
	for _, id := range slices.Sorted(maps.Keys(w.away)) {
		k, err := w.from.Key(ctx, w.account, id)
		if err != nil {
			return err
		}
		if err := putAll(ctx, w.migration, w.account, []*core.Key{k}, core.Tx.PutKey); err != nil {
			return fmt.Errorf("key %s: %w", id, err)
		}
	}
	return w.deleteStubs(ctx, w.account, &w.put)
}
