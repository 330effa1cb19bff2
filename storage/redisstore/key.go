package redisstore

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/record"
)

// keyRecord is the stored form of a key.
type keyRecord struct {
	core.Key
	Moves     uint8 `json:"moves,omitempty"` // how often the key has moved to another user, modulo 256
	PresetSeq bool  `json:"again,omitempty"` // the caller has set the Seq; an earlier key may have used it
}

// key returns the key with its times in UTC.
func (r *keyRecord) key() *core.Key {
	record.InUTC(&r.Key)
	return &r.Key
}

// Key implements [core.Store].
func (s *Store) Key(ctx context.Context, account, id string) (*core.Key, error) {
	r, err := get[keyRecord](ctx, s, s.o.account(account).apiKey(id), core.ErrKeyNotFound)
	if err != nil {
		return nil, err
	}
	return r.key(), nil
}

// KeyByDigest implements [core.Store]. The entry of the digest is in another slot, and lists every key that may have the
// digest. A transaction may move the digest between the reads of two keys. So KeyByDigest reads an entry of several keys twice.
func (s *Store) KeyByDigest(ctx context.Context, d core.Digest) (*core.Key, error) {
	if err := s.begin(); err != nil {
		return nil, err
	}
	defer s.end()
	for range 2 {
		holders, err := s.digestHolders(ctx, d)
		if err != nil {
			return nil, err
		}
		for _, holder := range holders {
			account, id, _ := strings.Cut(holder, "\x00")
			k, err := fetch[keyRecord](ctx, s, s.o.account(account).apiKey(id), core.ErrKeyNotFound)
			switch {
			case errors.Is(err, core.ErrKeyNotFound):
			case err != nil:
				return nil, err
			case slices.Contains(k.Digests(), d):
				return k.key(), nil
			}
		}
		if len(holders) < 2 {
			break
		}
	}
	return nil, core.ErrKeyNotFound
}

// digestHolders returns the account and id of each key that may have a digest.
func (s *Store) digestHolders(ctx context.Context, d core.Digest) ([]string, error) {
	ctx, cancel := s.withTimeout(ctx)
	defer cancel()
	r := s.do(ctx, s.client.B().Get().Key(s.o.digest(d)).Build())
	if err := unavailable(r.Error()); err != nil {
		return nil, err
	}
	entry, err := r.ToString()
	if err != nil {
		return nil, nil
	}
	return strings.Split(entry, "\n"), nil
}

// Keys implements [core.Store].
func (s *Store) Keys(ctx context.Context, account string, f core.KeyFilter, p core.Page) ([]*core.Key, int, error) {
	n := s.o.account(account)
	records, total, err := list[keyRecord](ctx, s, n.keys(f), n.key("k:"), p)
	if err != nil {
		return nil, 0, err
	}
	return keysOf(records), total, nil
}

// KeysAfter implements [core.LiveStore].
func (s *Store) KeysAfter(ctx context.Context, account string, seq int64, n int) ([]*core.Key, error) {
	of := s.o.account(account)
	records, err := listAfter[keyRecord](ctx, s, of.key("keys"), of.key("k:"), seq, n)
	return keysOf(records), err
}

func keysOf(records []*keyRecord) []*core.Key {
	keys := make([]*core.Key, len(records))
	for i, r := range records {
		keys[i] = r.key()
	}
	return keys
}

func (t *tx) key(id string) (*change[keyRecord], error) {
	return loadChange(t, t.keys, id, t.slot.apiKey(id))
}

// keysPerStep is the maximum number of keys of a user that one batch deletes. Such a batch takes about 10
// ms of the master.
const keysPerStep = 500

// hasManyKeys reports whether a user has more than keysPerStep keys.
func (t *tx) hasManyKeys(user int64) (bool, error) {
	n, err := t.CountKeys(core.KeyFilter{UserID: user})
	return n > keysPerStep, err
}

// loadKeys reads up to keysPerStep keys of a user.
func (t *tx) loadKeys(user int64) error {
	ids, err := t.indexIDs(t.slot.keys(core.KeyFilter{UserID: user}), 0, keysPerStep-1)
	if err != nil {
		return err
	}
	return t.loadEach(ids)
}

// indexIDs returns the ids at positions first to last of an index; to its end for -1. It is nil only on error.
func (t *tx) indexIDs(index string, first, last int) ([]string, error) {
	b := newBatch(t.slot)
	b.add("ZRANGE", index, strconv.Itoa(first), strconv.Itoa(last))
	answers := t.readBatch(b)
	if answers == nil {
		return nil, t.readErr
	}
	ids, err := answers[0].AsStrSlice()
	return append([]string{}, ids...), unavailable(err)
}

// errReused means that a new user has the ID of the deleted one.
var errReused = errors.New("a new user has the same number")

// deleteSomeKeys deletes up to keysPerStep keys of a deleted user. It reports whether the user had keys.
func (t *tx) deleteSomeKeys(user int64) (had bool, err error) {
	u, err := t.user(user)
	if err != nil {
		return false, err
	}
	if u.current() != nil {
		return false, errReused
	}
	if err := t.loadKeys(user); err != nil {
		return false, err
	}
	for _, k := range t.keys {
		k.write(nil)
	}
	return len(t.keys) > 0, nil
}

// loadEach reads the keys that the transaction has not read.
func (t *tx) loadEach(ids []string) error {
	ids = slices.DeleteFunc(ids, func(id string) bool { return t.keys[id] != nil })
	if len(ids) == 0 {
		return nil
	}
	b := newBatch(t.slot)
	for _, id := range ids {
		b.add("GET", t.slot.apiKey(id))
	}
	answers := t.readBatch(b)
	if answers == nil {
		return t.readErr
	}
	for i, id := range ids {
		r, ok := text(answers[i])
		if !ok {
			continue
		}
		before, err := record.Decode[keyRecord]([]byte(r))
		if err != nil {
			return err
		}
		t.keys[id] = &change[keyRecord]{before: before}
	}
	return nil
}

// Key implements [core.Tx].
func (t *tx) Key(id string) (*core.Key, error) {
	c, err := t.key(id)
	if err != nil {
		return nil, err
	}
	if c.before == nil {
		return nil, core.ErrKeyNotFound
	}
	r, err := clone(c.before)
	if err != nil {
		return nil, err
	}
	return r.key(), nil
}

// CountKeys implements [core.Tx].
func (t *tx) CountKeys(f core.KeyFilter) (int, error) { return t.countIndex("ZCARD", t.slot.keys(f)) }

// PutKey implements [core.Tx].
func (t *tx) PutKey(k *core.Key) error {
	if t.noAccount {
		return core.ErrAccountNotFound
	}
	c, err := t.key(k.ID)
	if err != nil {
		return err
	}
	preset, err := t.assign("key", &k.Seq)
	if err != nil {
		return err
	}
	c.preset = c.preset || preset
	after, err := clone(&keyRecord{Key: *k})
	if err != nil {
		return err
	}
	after.PresetSeq = c.preset
	if b := c.before; b != nil && b.Seq == k.Seq {
		after.Moves, after.PresetSeq = b.Moves, b.PresetSeq
		if b.UserID != k.UserID {
			after.Moves++
		}
	}
	c.write(after)
	return nil
}

// DeleteKey implements [core.Tx].
func (t *tx) DeleteKey(id string) error {
	c, err := t.key(id)
	if err != nil {
		return err
	}
	if c.current() == nil {
		return core.ErrKeyNotFound
	}
	c.write(nil)
	return nil
}
