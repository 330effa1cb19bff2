package badgerstore

import (
	"errors"
	"fmt"
	"testing"

	"github.com/dgraph-io/badger/v4"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/badgerstore/internal/rankset"
	"github.com/limitkeeper/limitkeeper/storage/badgerstore/internal/table"
	"github.com/limitkeeper/limitkeeper/storage/eventlog"
	"github.com/limitkeeper/limitkeeper/storage/record"
	"github.com/limitkeeper/limitkeeper/storage/resource"
)

// checking is an oracle: it compares all records of a database with each other.
type checking struct {
	view
	s       *Store
	indexes map[string]*rankset.Set // a cache of opened indexes, by base
	oldest  int64                   // the first position in the event log
}

// maxIndexes is the largest number of indexes in the cache of a check.
const maxIndexes = 1000

// contradictions returns an error for each record that is missing or damaged, and for each record that contradicts another
// one.
func contradictions(s *Store) (found []error, err error) {
	k := checking{s: s, indexes: map[string]*rankset.Set{}, oldest: firstPosition}
	for _, g := range s.events.Segments() {
		k.oldest = g.Base
		break
	}
	return found, s.db.View(func(txn *badger.Txn) error {
		k.view = view{txn}
		return k.eachFrom(nil, nil, func(p path, value []byte) (bool, error) {
			for _, err := range k.checkRecord(p, value) {
				if err != nil {
					found = append(found, err)
				}
			}
			return true, nil
		})
	})
}

// checkDamages runs Check and, when all files are whole, compares all records with each other. It opens the store as a start
// does, but rebuilds no database. It returns all damages.
func checkDamages(t *testing.T, dir string) (damages []string) {
	t.Helper()
	collect := func(err error) { damages = append(damages, err.Error()) }
	c, err := Check(dir, CheckOptions{Progress: func(string) {}, Damage: collect})
	if err != nil || c.Damaged != len(damages) {
		t.Fatalf("Check: got %+v, %v, with %d damages", c, err, len(damages))
	}
	if len(damages) > 0 {
		return damages
	}
	s, err := newStore(dir, quiet)
	if err != nil {
		t.Fatalf("open to compare the records: %v", err)
	}
	if err = s.openLog(); err == nil {
		err = s.index(table.Open)
	}
	if err != nil {
		s.abort(err)
		if isDamage(err) {
			return []string{err.Error()}
		}
		t.Fatalf("open to compare the records: %v", err)
	}
	found, err := contradictions(s)
	if err := errors.Join(err, s.Close()); err != nil {
		t.Fatalf("compare the records: %v", err)
	}
	for _, err := range found {
		collect(err)
	}
	return damages
}

// wantWhole fails if the check of a closed store finds damage, or records that contradict each other.
func wantWhole(t *testing.T, dir string) {
	t.Helper()
	for _, damage := range checkDamages(t, dir) {
		t.Errorf("damage: %s", damage)
	}
}

// checkRecord compares one record with the records that it names, and with the indexes that name it.
func (k *checking) checkRecord(p path, value []byte) []error {
	r := record.NewReader(p[1:])
	switch p[0] {
	case kindAccount, kindOwnerKey, kindUser, kindPlan, kindKey:
		return k.checkResource(p, value)
	case kindUnique:
		u := resource.Unique{}
		account := r.Text()
		u.Name, u.Value = r.Text(), r.Text()
		_, err := reader{view: k.view, account: account}.existingRecord(u.Kind(), string(value))
		return []error{err}
	case kindAccountID, kindOwnerKeyID, kindPlanID, kindKeyID:
		n, err := decodeNumber(value)
		if err != nil {
			return []error{undecodable(p, err)}
		}
		return []error{k.checkExists(recordPath(resource.Kind(p[0]&^0x20), r.Text(), n))}
	case kindDigest:
		account, n, err := decodeRef(value)
		if err != nil {
			return []error{undecodable(p, err)}
		}
		return []error{k.checkExists(keyPath(account, n))}
	case kindSet:
		return k.checkSet(p)
	case kindPages:
		page := ref{account: uint32(r.Uint(8))}
		if len(r.Rest()) != 2 || !isRoot(r.Rest()[1:]) {
			return nil
		}
		page.kind = uint32(r.Rest()[0])
		return k.checkMembers(p[:len(p)-1], func(n int64) path { return pagePath(ref{n, page.account, page.kind}) })
	case kindCounter:
		return k.checkPage(p, value)
	}
	return nil
}

// isRoot reports whether a key is that of the root of an index. suffix is the key without the base of the index.
func isRoot(suffix []byte) bool { return string(suffix) == "\x00" }

// undecodable returns the damage that a record cannot be decoded.
func undecodable(p path, err error) error { return contradiction(p, "it cannot be decoded: %v", err) }

// checkNumber returns an error unless the record at p has the number want.
func (k *checking) checkNumber(p path, want int64) error {
	n, err := k.number(p)
	switch {
	case err != nil:
		return undecodable(p, err)
	case n == 0:
		return absent(p)
	case n != want:
		return contradiction(p, "it has the number %d, but the record with this name has the number %d", n, want)
	}
	return nil
}

// checkDigest returns an error unless the record of a digest has the account and the number n.
func (k *checking) checkDigest(p path, account string, n int64) error {
	ref, err := k.get(p)
	if err == nil && string(ref) != string(encodeRef(account, n)) {
		err = contradiction(p, "it does not have the number %d of the account %s", n, account)
	}
	return err
}

func (k *checking) checkExists(p path) error {
	_, err := k.existing(p)
	return err
}

// checkResource checks that a resource is found by all its names.
func (k *checking) checkResource(p path, value []byte) (errs []error) {
	kind, r := resource.Kind(p[0]), record.NewReader(p[1:])
	account, number := r.Text(), int64(r.Uint(8))
	names, v, err := resource.NamesOf(kind, value)
	if err != nil {
		return []error{undecodable(p, err)}
	}
	if names.Number != 0 && names.Number != number {
		errs = append(errs, contradiction(p, "it says it has the number %d", names.Number))
	}
	if kind != resource.User {
		errs = append(errs, k.checkNumber(idPath(kind, account, names.ID), number))
	}
	for _, set := range names.Sets {
		errs = append(errs, k.checkMember(setPath(account, set), number))
	}
	for _, u := range names.Unique {
		errs = append(errs, k.checkHolder(uniquePath(account, u), names.ID))
	}
	user, plan := int64(0), ""
	switch v := v.(type) {
	case *core.User:
		user, plan = v.ID, v.PlanID
	case *core.Key:
		user, plan = v.UserID, v.PlanID
		errs = append(errs, k.checkPlanSets(account, v)...)
		for _, d := range v.Digests() {
			errs = append(errs, k.checkDigest(digestPath(d), account, number))
		}
	}
	if plan != "" {
		errs = append(errs, k.checkMember(setPath(account, resource.UserSet(core.UserFilter{OnPlan: plan})), user))
	}
	return errs
}

// checkPlanSets checks that a key is listed under the plan that limits it.
func (k *checking) checkPlanSets(account string, key *core.Key) (errs []error) {
	value, err := k.existing(userPath(account, key.UserID))
	if err != nil {
		return []error{err}
	}
	u, err := record.Decode[core.User](value)
	if err != nil {
		return []error{undecodable(userPath(account, key.UserID), err)}
	}
	for _, f := range key.PlanFilters(u.PlanID) {
		errs = append(errs, k.checkMember(setPath(account, resource.KeySet(f)), key.Seq))
	}
	return errs
}

// checkHolder returns an error unless the record at p names the resource with the id.
func (k *checking) checkHolder(p path, id string) error {
	value, err := k.existing(p)
	if err == nil && string(value) != id {
		err = contradiction(p, "it names %q, but %q has this value", value, id)
	}
	return err
}

// openIndex opens an index, or returns the index that it has opened before.
func (k *checking) openIndex(base path) (*rankset.Set, error) {
	if f := k.indexes[string(base)]; f != nil {
		return f, nil
	}
	f, err := k.index(base)
	if err == nil {
		if len(k.indexes) >= maxIndexes {
			clear(k.indexes)
		}
		k.indexes[string(base)] = f
	}
	return f, err
}

// checkMember returns an error unless a number is in an index.
func (k *checking) checkMember(base path, n int64) error {
	f, err := k.openIndex(base)
	if err != nil {
		return undecodable(base, err)
	}
	has, err := f.Contains(n)
	if err == nil && !has {
		err = contradiction(base, "this index lacks the number %d", n)
	}
	return err
}

// checkSet checks that each number in a set has its record.
func (k *checking) checkSet(p path) []error {
	r := record.NewReader(p[1:])
	account := r.Text()
	kind := resource.KindOfSet(r.Text())
	if kind == 0 {
		return []error{contradiction(p, "this kind of set is unknown")}
	}
	if !isRoot(r.Rest()) {
		return nil
	}
	return k.checkMembers(p[:len(p)-1], func(n int64) path { return recordPath(kind, account, n) })
}

// checkMembers checks that each number of an index has a record. to returns the path of that record.
func (k *checking) checkMembers(base path, to func(int64) path) (errs []error) {
	f, err := k.index(append(path(nil), base...))
	if err != nil {
		return []error{undecodable(base, err)}
	}
	const some = 1000
	for offset := 0; offset < f.Len(); offset += some {
		numbers, err := f.Page(offset, some)
		if err != nil {
			return append(errs, undecodable(base, err))
		}
		for _, n := range numbers {
			errs = append(errs, k.checkExists(to(n)))
		}
	}
	return errs
}

// checkPage checks the counters of a page: each can be decoded, and its last event is in the event log, unless
// retention has removed the segment.
func (k *checking) checkPage(p path, value []byte) (errs []error) {
	page, ok := pageOf(p)
	if !ok {
		return []error{contradiction(p, "its path cannot be decoded")}
	}
	errs = append(errs, k.checkMember(pagesOf(page), page.number))
	pg, err := decodePage(value)
	if err != nil {
		return append(errs, undecodable(p, err))
	}
	for cell, record := range pg {
		if record == nil || isDropped(record) {
			continue
		}
		errs = append(errs, k.checkCounter(p, page.counter(byte(cell)), record))
	}
	return errs
}

// lastPosition returns the position of the last entry, 0 when there is none.
func (t *counterState) lastPosition() int64 {
	if n := len(t.chain); n > 0 {
		return t.chain[n-1]
	}
	return 0
}

func (k *checking) checkCounter(p path, of ref, record []byte) error {
	t, err := decodeState(record)
	if err != nil {
		return undecodable(p, fmt.Errorf("counter %d: %w", of.number, err))
	}
	head := t.lastPosition()
	if head < k.oldest {
		return nil
	}
	e, err := k.s.event(head)
	switch {
	case errors.Is(err, eventlog.ErrGone):
	case isDamage(err): // of the database: the event log is whole
		return contradiction(p, "counter %d refers to position %d of the event log, which has no event there", of.number, head)
	case err != nil:
		return err
	case e.linkOf(of.kind).number != t.entries:
		return contradiction(p, "counter %d has %d events, and its last event has number %d", of.number, t.entries, e.linkOf(of.kind).number)
	}
	return nil
}
