package badgerstore

import (
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"

	"github.com/dgraph-io/badger/v4"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/badgerstore/internal/eventlog"
	"github.com/limitkeeper/limitkeeper/storage/badgerstore/internal/rankset"
	"github.com/limitkeeper/limitkeeper/storage/badgerstore/internal/reserve"
	"github.com/limitkeeper/limitkeeper/storage/badgerstore/internal/table"
	"github.com/limitkeeper/limitkeeper/storage/record"
	"github.com/limitkeeper/limitkeeper/storage/resource"
)

// CheckOptions has the callbacks of [Check].
type CheckOptions struct {
	Progress func(line string)  // is called with the progress from time to time
	Damage   func(damage error) // is called with each damage; the error has one line
}

// CheckReport is the result of [Check].
type CheckReport struct {
	Tables, Segments, Events, Records int
	Bytes                             int64 // size of the tables and segments
	Damaged                           int   // number of reported damages
	Database                          int   // damages of the database: [Rebuild] mends them; [Repair] mends the others

	Incomplete []string // names of the accounts whose import has not finished: no damage
}

// String returns the numbers of tables, segments, events, records and bytes read.
func (c CheckReport) String() string {
	return fmt.Sprintf("%s with %s, %s with %s of the event log, %s", plural(c.Tables, "table"), plural(c.Records, "record"),
		plural(c.Segments, "segment"), plural(c.Events, "record"), plural(int(c.Bytes), "byte"))
}

// Err returns an error that names the command which mends the damage of the store in dir, nil without damage.
func (c CheckReport) Err(dir string) error {
	command := "repair"
	switch {
	case c.Damaged == 0:
		return nil
	case c.Database > 0:
		command = "rebuild"
	}
	return fmt.Errorf("the store in %s is damaged in %s: run limitkeeper %s --store badger:%[1]s, or restore a backup", dir, plural(c.Damaged, "place"), command)
}

// Check verifies a store that is not open: the files of the database, the event log, and whether records, indexes and
// counters agree. To compare records it opens the store as a start does, but only when all files are whole. Check
// returns [ErrInUse] for an open store.
func Check(dir string, o CheckOptions) (c CheckReport, err error) {
	damage := o.Damage
	o.Damage = func(err error) {
		c.Damaged++
		if !errors.Is(err, eventlog.ErrDamaged) {
			c.Database++
		}
		damage(err)
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("check the store in %s: %w", dir, err)
		}
	}()
	release, err := claim(dir)
	if err != nil {
		return c, err
	}
	err = c.files(dir, o)
	release()
	if err != nil || c.Damaged > 0 {
		return c, err
	}
	s, err := open(dir, Options{Logger: slog.New(slog.DiscardHandler), MinFree: minFreeOf(dir)})
	if isDamage(err) {
		o.Damage(err)
		return c, nil
	}
	if err != nil {
		return c, err
	}
	err = s.checkRecords(&c, o)
	return c, errors.Join(err, s.Close())
}

// minFreeOf returns the value of [Options.MinFree] that keeps the size of the reserve in a directory: 0 without a reserve.
func minFreeOf(dir string) int64 {
	size := reserve.Size(dir)
	if size == 0 {
		return 0
	}
	return max(size, MinMinFree) // a full disk has shrunk a smaller reserve
}

// files verifies all files, without a change.
func (c *CheckReport) files(dir string, o CheckOptions) error {
	position, err := table.Check(tableOptions(dir, slog.New(slog.DiscardHandler)), func(p table.Progress) {
		c.Tables = p.Tables
		if p.Tables%100 == 0 || p.Tables == p.Of {
			o.Progress(fmt.Sprintf("tables %d/%d", p.Tables, p.Of))
		}
		c.Bytes = p.Bytes
	}, o.Damage)
	if err != nil {
		return err
	}
	o.Progress("event log")
	r, err := eventlog.Verify(eventlog.Options{Dir: filepath.Join(dir, eventLogDir), Known: position, Boot: eventlog.Boot()})
	if err != nil {
		return err
	}
	for _, d := range r.Damage {
		o.Damage(d)
	}
	if r.Torn.Bytes > 0 {
		o.Progress(fmt.Sprintf("event log: the last %d bytes of %s are a torn write: a crash interrupted the write, and the next start cuts them off", r.Torn.Bytes, r.Torn.File))
	}
	c.Segments, c.Events, c.Bytes = r.Segments, r.Records, c.Bytes+r.Bytes
	o.Progress(fmt.Sprintf("event log: %s, %s", plural(r.Segments, "segment"), plural(r.Records, "record")))
	return nil
}

// checking compares all records with each other.
type checking struct {
	snapshot
	s       *Store
	indexes map[string]*rankset.Set // a cache of opened indexes, by base
	oldest  int64                   // the first position in the event log
}

// maxIndexes is the largest number of indexes in the cache of a check.
const maxIndexes = 1000

// checkRecords reports each record that is missing or damaged, and each record that contradicts another one.
func (s *Store) checkRecords(c *CheckReport, o CheckOptions) error {
	k := checking{s: s, indexes: map[string]*rankset.Set{}, oldest: firstPosition}
	for _, g := range s.events.Segments() {
		k.oldest = g.Base
		break
	}
	return s.db.View(func(txn *badger.Txn) error {
		k.snapshot = snapshot{txn}
		return k.each(nil, func(p path, value []byte) (bool, error) {
			if p[0] == kindAccount {
				if a, err := record.Decode[core.Account](value); err == nil && a.Incomplete() {
					c.Incomplete = append(c.Incomplete, a.Name)
				}
			}
			for _, err := range k.checkRecord(p, value) {
				if err != nil {
					o.Damage(err)
				}
			}
			if c.Records++; c.Records%100_000 == 0 {
				o.Progress(fmt.Sprintf("records of the database %d", c.Records))
			}
			return true, nil
		})
	})
}

// checkRecord compares one record with the records that it names, and with the indexes that name it.
func (k *checking) checkRecord(p path, value []byte) []error {
	r := decoder{p[1:]}
	switch p[0] {
	case kindAccount, kindOwnerKey, kindUser, kindPlan, kindKey:
		return k.checkResource(p, value)
	case kindUnique:
		u := resource.Unique{}
		account := r.text()
		u.Name, u.Value = r.text(), r.text()
		_, err := reader{snapshot: k.snapshot, account: account}.existingRecord(u.Kind(), string(value))
		return []error{err}
	case kindAccountID, kindOwnerKeyID, kindPlanID, kindKeyID:
		n, err := decodeNumber(value)
		if err != nil {
			return []error{undecodable(p, err)}
		}
		return []error{k.checkExists(recordPath(resource.Kind(p[0]&^0x20), r.text(), n))}
	case kindDigest:
		account, n, err := decodeRef(value)
		if err != nil {
			return []error{undecodable(p, err)}
		}
		return []error{k.checkExists(keyPath(account, n))}
	case kindSet:
		return k.checkSet(p)
	case kindPages:
		page := ref{account: uint32(r.uint64())}
		if len(r.rest) != 2 || !rankset.IsRoot(r.rest[1:]) {
			return nil
		}
		page.kind = uint32(r.rest[0])
		return k.checkMembers(p[:len(p)-1], func(n int64) path { return pagePath(ref{n, page.account, page.kind}) })
	case kindCounter:
		return k.checkPage(p, value)
	}
	return nil
}

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
	value, err := k.get(p)
	if err == nil && value == nil {
		err = absent(p)
	}
	return err
}

// checkResource checks that a resource is found by all its names.
func (k *checking) checkResource(p path, value []byte) (errs []error) {
	kind, r := resource.Kind(p[0]), decoder{p[1:]}
	account, number := r.text(), int64(r.uint64())
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
		errs = append(errs, k.checkExists(userPath(account, user)))
		for _, d := range v.Digests() {
			errs = append(errs, k.checkDigest(digestPath(d), account, number))
		}
	}
	if plan != "" {
		errs = append(errs, k.checkMember(setPath(account, resource.UserSet(core.UserFilter{OnPlan: plan})), user))
	}
	return errs
}

// checkHolder returns an error unless the record at p names the resource with the id.
func (k *checking) checkHolder(p path, id string) error {
	value, err := k.get(p)
	switch {
	case err != nil:
		return undecodable(p, err)
	case value == nil:
		return absent(p)
	case string(value) != id:
		return contradiction(p, "it names %q, but %q has this value", value, id)
	}
	return nil
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
	r := decoder{p[1:]}
	account := r.text()
	kind := resource.KindOfSet(r.text())
	if kind == 0 {
		return []error{contradiction(p, "this kind of set is unknown")}
	}
	if !rankset.IsRoot(r.rest) {
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
	for slot, record := range pg {
		if record == nil || isDropped(record) {
			continue
		}
		errs = append(errs, k.checkCounter(p, page.counter(byte(slot)), record))
	}
	return errs
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
