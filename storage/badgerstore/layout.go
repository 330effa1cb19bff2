package badgerstore

import (
	"encoding/binary"
	"errors"
	"time"

	"github.com/dgraph-io/badger/v4"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/badgerstore/internal/table"
)

// schema is the version of the layout below. A store that was written with a later
// one is refused. Before 3 there were no days: see below for what is different. Before 4 a
// counter had no denials of a day, and a segment no end of its request ids: see decodeKeep.
// Before 5 the event log was of format 1. Before 6 it had no transactions, and no record said which
// pages there are: see upgrade.go.
const schema = 6

// Everything is one key space. A key is its kind, one byte, and then fields: a
// text is its length as a uvarint and its bytes, a number 8 bytes, big endian. The
// account comes first, so that what belongs to an account lies together.
//
//	kind           key                          value
//	v schema                                    version, uvarint
//	A account      number                       core.Account, JSON
//	a              account id                   its number
//	n              account name                 its number
//	O owner's key  account, number              core.OwnerKey, JSON
//	o              account, id                  its number
//	q              digest, 32 bytes             account, number
//	I access       account                      core.Access, JSON
//	U user         account, user id             core.User, JSON
//	e              account, folded email        user id
//	P plan         account, seq                 core.Plan, JSON
//	p              account, plan id             its seq
//	K key          account, seq                 core.Key, JSON
//	k              account, key id              its seq
//	d              digest, 32 bytes             account, seq
//	l              account, kind                the last number given
//	h              account, user id, plan id    by how many keys, and as a user's
//	                                            own, the user has the plan; uvarint
//	S set          account, index, node         see internal/rankset
//	C counters     account's number, kind,      a page of counters, see below
//	               number of the page
//	c pages        account's number, kind, node the numbers of the pages that there are, see internal/rankset
//	D day          account's number, kind,      a day of a page of counters, see archive.go
//	               number of the page, date
//	R request id   account's number, seq of     the position of its event in the event log
//	               the key, id
//	F folded       nothing                      up to where the event log is, see fold.go
//	G segment      position                     until when one of format 1 is kept, see event.go
//	J journal      stripe, chunk                before schema 6: a transaction, see upgrade.go
//	L applied      account, or "" for the       the position of the last transaction of the account, see redo.go
//	               registry of accounts
//	Z filler       nothing                      nothing: it fills memtables, see fold.go
//
// Beside the database there is the event log, with every event of a counter: see internal/eventlog.
const (
	kindSchema      = 'v'
	kindAccount     = 'A'
	kindAccountID   = 'a'
	kindAccountName = 'n'
	kindOwnerKey    = 'O'
	kindOwnerKeyID  = 'o'
	kindOwnerDigest = 'q'
	kindAccess      = 'I'
	kindUser        = 'U'
	kindEmail       = 'e'
	kindPlan        = 'P'
	kindPlanID      = 'p'
	kindKey         = 'K'
	kindKeyID       = 'k'
	kindDigest      = 'd'
	kindLast        = 'l'
	kindHolding     = 'h'
	kindSet         = 'S'
	kindCounter     = 'C'
	kindPages       = 'c'
	kindDay         = 'D'
	kindRequestID   = 'R'
	kindCheckpoint  = 'F'
	kindSegment     = 'G'
	kindJournal     = 'J'
	kindApplied     = 'L'
	kindFiller      = 'Z'
)

// path is a key of the database under construction.
type path []byte

// at begins the path of a kind. It has room for the usual fields.
func at(kind byte) path { return append(make(path, 0, 80), kind) }

// text appends a text, in a form that no other text begins with.
func (p path) text(s string) path {
	return append(binary.AppendUvarint(p, uint64(len(s))), s...)
}

// number appends a number. Paths sort by it.
func (p path) number(n int64) path { return binary.BigEndian.AppendUint64(p, uint64(n)) }

// The paths of single records.

func accountPath(number int64) path    { return at(kindAccount).number(number) }
func accountIDPath(id string) path     { return at(kindAccountID).text(id) }
func accountNamePath(name string) path { return at(kindAccountName).text(name) }

func ownerKeyPath(account string, number int64) path {
	return at(kindOwnerKey).text(account).number(number)
}
func ownerKeyIDPath(account, id string) path { return at(kindOwnerKeyID).text(account).text(id) }
func ownerDigestPath(d core.Digest) path     { return append(at(kindOwnerDigest), d[:]...) }
func accessPath(account string) path         { return at(kindAccess).text(account) }

func userPath(account string, id int64) path { return at(kindUser).text(account).number(id) }
func emailPath(account, folded string) path  { return at(kindEmail).text(account).text(folded) }

func planPath(account string, seq int64) path { return at(kindPlan).text(account).number(seq) }
func planIDPath(account, id string) path      { return at(kindPlanID).text(account).text(id) }

func keyPath(account string, seq int64) path { return at(kindKey).text(account).number(seq) }
func keyIDPath(account, id string) path      { return at(kindKeyID).text(account).text(id) }
func digestPath(d core.Digest) path          { return append(at(kindDigest), d[:]...) }

func appliedPath(account string) path { return at(kindApplied).text(account) }

func lastPath(account string, kind byte) path { return append(at(kindLast).text(account), kind) }

func holdingPath(account string, user int64, plan string) path {
	return at(kindHolding).text(account).number(user).text(plan)
}

// droppedPath stands for a counter that is to be dropped, among what is to be written.
func droppedPath(of ref) path {
	return append(at(kindCounter).number(int64(of.account)), byte(of.kind)).number(of.number)
}

func segmentKey(base int64) path { return at(kindSegment).number(base) }

// The indexes of sets: each is the numbers of the resources that a list shows.

func allUsers(account string) path { return at(kindSet).text(account).text("users") }
func usersWithPlan(account, plan string) path {
	return at(kindSet).text(account).text("plan").text(plan)
}
func usersOnPlan(account, plan string) path { return at(kindSet).text(account).text("on").text(plan) }
func allPlans(account string) path          { return at(kindSet).text(account).text("plans") }

// keyIndex returns the index of the keys that match a filter.
func keyIndex(account string, f core.KeyFilter) path {
	p := at(kindSet).text(account)
	if f.PlanID == nil {
		p = p.text("keys")
	} else {
		p = p.text("plan keys").text(*f.PlanID)
	}
	return p.number(f.UserID).text(string(f.Status))
}

// errRecord means that a record cannot be read.
var errRecord = errors.New("a record is damaged")

// encodeNumber returns the record that is nothing but a number.
func encodeNumber(n int64) []byte { return binary.AppendUvarint(nil, uint64(n)) }

// decodeNumber returns the number of a record, 0 when there is no record.
func decodeNumber(record []byte) (int64, error) {
	if record == nil {
		return 0, nil
	}
	n, size := binary.Uvarint(record)
	if size != len(record) || size <= 0 {
		return 0, errRecord
	}
	return int64(n), nil
}

// encodeRef returns the record that names a numbered resource of an account.
func encodeRef(account string, number int64) []byte { return path(nil).text(account).number(number) }

func decodeRef(record []byte) (account string, number int64, err error) {
	r := reading{record}
	account, number = r.text(), int64(r.uint64())
	if r.failed() {
		return "", 0, errRecord
	}
	return account, number, nil
}

// reading takes a binary record apart. When anything is missing it has failed, and
// what it has returned means nothing.
type reading struct{ rest []byte }

func (r *reading) failed() bool { return r.rest == nil }

func (r *reading) uvarint() uint64 {
	n, size := binary.Uvarint(r.rest)
	r.skip(size, size > 0)
	return n
}

func (r *reading) varint() int64 {
	n, size := binary.Varint(r.rest)
	r.skip(size, size > 0)
	return n
}

func (r *reading) uint64() (n uint64) {
	if len(r.rest) >= 8 {
		n = binary.BigEndian.Uint64(r.rest)
	}
	r.skip(8, len(r.rest) >= 8)
	return n
}

func (r *reading) text() (s string) {
	n := r.uvarint()
	fits := n <= uint64(len(r.rest))
	if fits {
		s = string(r.rest[:n])
	}
	r.skip(int(n), fits)
	return s
}

// time reads what appendTime has written.
func (r *reading) time() time.Time {
	seconds, nanoseconds := r.varint(), r.uvarint()
	return time.Unix(seconds, int64(nanoseconds)).UTC()
}

func (r *reading) skip(size int, ok bool) {
	if !ok || r.rest == nil {
		r.rest = nil
		return
	}
	r.rest = r.rest[size:]
}

// appendText appends a text, for [reading.text].
func appendText(b []byte, s string) []byte { return path(b).text(s) }

// appendTime appends an instant, exactly.
func appendTime(b []byte, t time.Time) []byte {
	b = binary.AppendVarint(b, t.Unix())
	return binary.AppendUvarint(b, uint64(t.Nanosecond()))
}

// Counters are stored by pages: those of consecutive keys, or users, of an account are
// in one record. So folding many of them costs badger few records.
//
//	mark     1 byte, pageMark; a page that was written before there were days has none
//	slot     1 byte: the number within the page
//	tally    a text, see [tally.encode]
const (
	pageBits  = 6
	pageSlots = 1 << pageBits
	pageMark  = pageSlots
)

// page is where a counter is stored.
func (r ref) page() ref { return ref{r.number >> pageBits, r.account, r.kind} }

// pageOf returns the page at a path.
func pageOf(p path) (page ref, ok bool) {
	r := reading{p[1:]}
	page.account = uint32(r.uint64())
	if len(r.rest) != 9 {
		return ref{}, false
	}
	page.kind = uint32(r.rest[0])
	r.skip(1, true)
	page.number = int64(r.uint64())
	return page, true
}

// counter returns the counter in a slot of a page.
func (r ref) counter(slot byte) ref { return ref{r.number<<pageBits | int64(slot), r.account, r.kind} }

// slot is where it is on its page.
func (r ref) slot() byte { return byte(r.number & (pageSlots - 1)) }

// pagePath returns the path of a page of counters.
func pagePath(page ref) path {
	return append(at(kindCounter).number(int64(page.account)), byte(page.kind)).number(page.number)
}

// page is a page of counters: their records by their slots, nil where there is none.
type page [pageSlots][]byte

// decodePage takes a page apart. What it returns has the memory of record.
func decodePage(record []byte) (*page, error) {
	p := new(page)
	r := reading{record}
	marked := len(record) > 0 && record[0] == pageMark
	if marked {
		r.skip(1, true)
	}
	for len(r.rest) > 0 {
		slot := r.rest[0]
		r.skip(1, true)
		n := r.uvarint()
		if r.failed() || slot >= pageSlots || n > uint64(len(r.rest)) {
			return nil, errRecord
		}
		p[slot] = r.rest[:n:n]
		if !marked {
			p[slot] = withFlags(p[slot])
		}
		r.skip(int(n), true)
	}
	return p, nil
}

// withFlags returns the record of a counter as it is written now, of one that was written
// before there were days: its first number has no room for the flag of them.
func withFlags(record []byte) []byte {
	first, size := binary.Uvarint(record)
	const flags = stateFlags - 1
	first = first>>flags<<stateFlags | first&(1<<flags-1)
	return append(binary.AppendUvarint(make([]byte, 0, len(record)+1), first), record[max(size, 0):]...)
}

// encode returns the record of a page, nil when it is empty.
func (p *page) encode() []byte {
	size := 0
	for _, record := range p {
		size += len(record) + 4
	}
	b := append(make([]byte, 0, size+1), pageMark)
	for slot, record := range p {
		if record != nil {
			b = binary.AppendUvarint(append(b, byte(slot)), uint64(len(record)))
			b = append(b, record...)
		}
	}
	if len(b) == 1 {
		return nil
	}
	return b
}

// tally reads a counter as its page has it.
func (r snapshot) counterState(of ref) (t counterState, err error) {
	item, err := r.item(pagePath(of.page()))
	if err == badger.ErrKeyNotFound {
		return counterState{}, r.noPage(of.page())
	}
	if err != nil {
		return counterState{}, err
	}
	err = item.Value(func(record []byte) error {
		p, err := decodePage(record)
		if err != nil {
			return err
		}
		t, err = decodeState(p[of.slot()])
		return err
	})
	return t, err
}

// pagesOf returns the index of the pages of an account and kind. A page that is in the index and has no
// record is damage: without the index its counters would be read as zero.
func pagesOf(page ref) path {
	return append(at(kindPages).number(int64(page.account)), byte(page.kind))
}

// noPage returns an error if a page that has no record was written before.
func (r snapshot) noPage(page ref) error {
	f, err := r.index(pagesOf(page))
	if err != nil {
		return err
	}
	if has, err := f.Contains(page.number); err != nil || !has {
		return err
	}
	return absent(pagePath(page))
}

// setPage writes a page, or deletes it when the record is nil. existed says whether there was one.
func setPage(txn *table.Txn, page ref, record []byte, existed bool) error {
	if existed != (record != nil) {
		if err := listPages(txn, record != nil, page); err != nil {
			return err
		}
	}
	return setOrDelete(txn, pagePath(page), record)
}

// listPages adds pages of one account and kind to their index, or removes them.
func listPages(txn *table.Txn, there bool, pages ...ref) error {
	f, err := snapshot{txn.Txn}.index(pagesOf(pages[0]))
	for _, p := range pages {
		if err != nil {
			return err
		}
		if there {
			err = f.Add(p.number)
		} else {
			err = f.Remove(p.number)
		}
	}
	f.Write(func(key, record []byte) { err = firstOf(err, setOrDelete(txn, key, record)) })
	return err
}

// listOldPages lists the pages of a store of before schema 6.
func (s *Store) listOldPages() error {
	var pages []ref
	err := s.db.View(func(txn *badger.Txn) error {
		return snapshot{txn}.each(at(kindCounter), false, func(p path, _ []byte) (bool, error) {
			page, ok := pageOf(p)
			if !ok {
				return false, errRecord
			}
			pages = append(pages, page)
			return true, nil
		})
	})
	for len(pages) > 0 && err == nil {
		n := 1
		for n < min(len(pages), maxWrites/4) && pages[n].account == pages[0].account && pages[n].kind == pages[0].kind {
			n++
		}
		s.committing.Lock()
		err = s.commitLocked(func(txn *table.Txn) error { return listPages(txn, true, pages[:n]...) })
		s.committing.Unlock()
		pages = pages[n:]
	}
	return err
}

// maxPageBytes is about how long a page can be.
const maxPageBytes = 16 << 10

// dropCounters leaves on a page, in place of counters that are deleted, that the events
// of the event log up to a position do not count. Their history stays in the event log until it
// expires, and nothing leads there. In a replay the page may be ahead of the position, with a counter
// that was made under the same number later: the events of that are replayed too.
func dropCounters(txn *table.Txn, counters []ref, position int64) error {
	p := pagePath(counters[0].page())
	record, err := snapshot{txn.Txn}.get(p)
	if err != nil {
		return err
	}
	pg, err := decodePage(record)
	if err != nil {
		return err
	}
	for _, of := range counters {
		pg[of.slot()] = encodeDropped(position)
	}
	return setPage(txn, counters[0].page(), pg.encode(), record != nil)
}
