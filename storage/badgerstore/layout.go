package badgerstore

import (
	"encoding/binary"
	"errors"
	"time"

	"github.com/dgraph-io/badger/v4"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/badgerstore/internal/table"
)

// schema is the version of the layout below. Open refuses a store with another schema.
const schema = 1

// A key of Badger is its kind, one byte, followed by fields. A text field is its length as a uvarint and its bytes; a
// number is 8 bytes, big endian. The account is the first field, so the records of an account are adjacent.
//
//	kind           key                          value
//	V schema                                    version, uvarint
//	A account      number                       core.Account, JSON
//	a              account id                   its number
//	n              account name                 its number
//	O owner's key  account, number              core.OwnerKey, JSON
//	o              account, id                  its number
//	q              digest, 32 bytes             account, number
//	I access       account                      core.Access, JSON
//	U user         account, user id             core.User, JSON
//	e              account, folded email        user id
//	x              account, external id         user id
//	P plan         account, seq                 core.Plan, JSON
//	p              account, plan id             its seq
//	K key          account, seq                 core.Key, JSON
//	k              account, key id              its seq
//	d              digest, 32 bytes             account, seq
//	l last number  account, kind                the largest number given to a resource of the kind, uvarint
//	h holding      account, user id, plan id    how often the user has the plan, by a key or as its own; uvarint
//	S set          account, index, node         see internal/rankset
//	C counters     account's number, kind,      a page of counters, see below
//	               number of the page
//	c pages        account's number, kind, node the numbers of all pages, see internal/rankset
//	D day          account's number, kind,      a day of a page of counters, see days.go
//	               number of the page, date
//	R request id   account's number, seq of     the position of the request's event in the event log
//	               the key, id; or number of
//	               the user, id, U
//	F mark         -                            the mark of the last checkpoint, see checkpoint.go
//	E in tables    -                            which transactions the tables have, see replay.go
//	H filler       -                            padding that fills a memtable, see internal/table
//
// The events of counters are in the event log: see internal/eventlog.
const (
	kindSchema      = 'V' // 'v' in builds before the first release
	kindAccount     = 'A'
	kindAccountID   = 'a'
	kindAccountName = 'n'
	kindOwnerKey    = 'O'
	kindOwnerKeyID  = 'o'
	kindOwnerDigest = 'q'
	kindAccess      = 'I'
	kindUser        = 'U'
	kindEmail       = 'e'
	kindExternalID  = 'x'
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

	// Each memtable ends with the record inTables and a filler, whose kinds sort soon after that of the pages. Badger
	// merges a table with all tables of the next level whose records overlap the range of its records. With the kinds L
	// and Z, that range included all plans, users and keys: a checkpoint of a million counters merged 300,000 records, and
	// merges 25,000 with these kinds. Request ids make the range that wide, too.
	kindInTables = 'E'
	kindFiller   = 'H'
)

// path is a key of the database under construction.
type path []byte

// at begins the path of a kind. Its capacity is enough for most paths.
func at(kind byte) path { return append(make(path, 0, 80), kind) }

// text appends a text with its length, so no text is a prefix of another one.
func (p path) text(s string) path {
	return append(binary.AppendUvarint(p, uint64(len(s))), s...)
}

// number appends a number. Paths sort by it.
func (p path) number(n int64) path { return binary.BigEndian.AppendUint64(p, uint64(n)) }

// The paths of records.

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
func externalIDPath(account, id string) path { return at(kindExternalID).text(account).text(id) }

// uniquePath returns the path of the record that names the one user that matches a filter of
// [core.User.UniqueFilters], nil for any other filter.
func uniquePath(account string, f core.UserFilter) path {
	switch {
	case f.Email != "":
		return emailPath(account, core.FoldEmail(f.Email))
	case f.ExternalID != "":
		return externalIDPath(account, f.ExternalID)
	}
	return nil
}

func planPath(account string, seq int64) path { return at(kindPlan).text(account).number(seq) }
func planIDPath(account, id string) path      { return at(kindPlanID).text(account).text(id) }

func keyPath(account string, seq int64) path { return at(kindKey).text(account).number(seq) }
func keyIDPath(account, id string) path      { return at(kindKeyID).text(account).text(id) }
func digestPath(d core.Digest) path          { return append(at(kindDigest), d[:]...) }

func lastPath(account string, kind byte) path { return append(at(kindLast).text(account), kind) }

func holdingPath(account string, user int64, plan string) path {
	return at(kindHolding).text(account).number(user).text(plan)
}

// droppedPath is the path of a counter that writes deletes. It can be the path of a page of other counters: write.drop tells
// them apart, and writes have no pages.
func droppedPath(of ref) path {
	return append(at(kindCounter).number(int64(of.account)), byte(of.kind)).number(of.number)
}

// The indexes of lists. An index has the numbers of the resources in a list.

func allUsers(account string) path { return at(kindSet).text(account).text("users") }
func usersWithPlan(account, plan string) path {
	return at(kindSet).text(account).text("plan").text(plan)
}
func anchoredUsers(account string) path     { return at(kindSet).text(account).text("anchored") }
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

// errRecord means that a record cannot be decoded.
var errRecord = errors.New("a record is damaged")

// encodeNumber returns a record with only a number.
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

// encodeRef returns a record with an account and the number of one of its resources.
func encodeRef(account string, number int64) []byte { return path(nil).text(account).number(number) }

func decodeRef(record []byte) (account string, number int64, err error) {
	r := decoder{record}
	account, number = r.text(), int64(r.uint64())
	if r.failed() {
		return "", 0, errRecord
	}
	return account, number, nil
}

// decoder decodes a binary record field by field. When a field is missing or invalid, failed returns true, and the
// values read are invalid.
type decoder struct{ rest []byte }

func (r *decoder) failed() bool { return r.rest == nil }

// fail makes failed return true.
func (r *decoder) fail() { r.rest = nil }

func (r *decoder) uvarint() uint64 {
	n, size := binary.Uvarint(r.rest)
	r.skip(size, size > 0)
	return n
}

func (r *decoder) varint() int64 {
	n, size := binary.Varint(r.rest)
	r.skip(size, size > 0)
	return n
}

func (r *decoder) uint64() (n uint64) {
	if len(r.rest) >= 8 {
		n = binary.BigEndian.Uint64(r.rest)
	}
	r.skip(8, len(r.rest) >= 8)
	return n
}

func (r *decoder) text() (s string) {
	n := r.uvarint()
	fits := n <= uint64(len(r.rest))
	if fits {
		s = string(r.rest[:n])
	}
	r.skip(int(n), fits)
	return s
}

// time reads a time that appendTime has written.
func (r *decoder) time() time.Time {
	seconds, nanoseconds := r.varint(), r.uvarint()
	return time.Unix(seconds, int64(nanoseconds)).UTC()
}

func (r *decoder) skip(size int, ok bool) {
	if !ok || r.rest == nil {
		r.rest = nil
		return
	}
	r.rest = r.rest[size:]
}

// appendText appends a text, for [decoder.text].
func appendText(b []byte, s string) []byte { return path(b).text(s) }

// appendTime appends a time with its nanoseconds.
func appendTime(b []byte, t time.Time) []byte {
	b = binary.AppendVarint(b, t.Unix())
	return binary.AppendUvarint(b, uint64(t.Nanosecond()))
}

// A page is one record with the counters of 64 consecutive keys, or users, of an account. So a checkpoint of many
// counters writes few records to Badger.
//
//	slot     1 byte: the number within the page
//	state    a text, see counterState.encode
const (
	pageBits  = 6
	pageSlots = 1 << pageBits
)

// page returns the page of a counter. Its number is the number of the page.
func (r ref) page() ref { return ref{r.number >> pageBits, r.account, r.kind} }

// pageOf returns the page at a path.
func pageOf(p path) (page ref, ok bool) {
	r := decoder{p[1:]}
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

// slot returns the slot of a counter on its page.
func (r ref) slot() byte { return byte(r.number & (pageSlots - 1)) }

// pagePath returns the path of a page of counters.
func pagePath(page ref) path {
	return append(at(kindCounter).number(int64(page.account)), byte(page.kind)).number(page.number)
}

// page has the records of the counters of a page by slot, nil for an empty slot.
type page [pageSlots][]byte

// decodePage decodes a page. The result shares the memory of record.
func decodePage(record []byte) (*page, error) {
	p := new(page)
	for r := (decoder{record}); len(r.rest) > 0; {
		slot := r.rest[0]
		r.skip(1, true)
		n := r.uvarint()
		if r.failed() || slot >= pageSlots || n > uint64(len(r.rest)) {
			return nil, errRecord
		}
		p[slot] = r.rest[:n:n]
		r.skip(int(n), true)
	}
	return p, nil
}

// encode returns the record of a page, nil when it is empty.
func (p *page) encode() []byte {
	size := 0
	for _, record := range p {
		size += len(record) + 4
	}
	b := make([]byte, 0, size)
	for slot, record := range p {
		if record != nil {
			b = binary.AppendUvarint(append(b, byte(slot)), uint64(len(record)))
			b = append(b, record...)
		}
	}
	if len(b) == 0 {
		return nil
	}
	return b
}

// counterState reads a counter from its page, without the events after the page.
func (r snapshot) counterState(of ref) (t counterState, err error) {
	err = r.view(pagePath(of.page()), func(record []byte) error {
		p, err := decodePage(record)
		if err != nil {
			return err
		}
		t, err = decodeState(p[of.slot()])
		return err
	})
	if errors.Is(err, badger.ErrKeyNotFound) {
		return counterState{}, r.noPage(of.page())
	}
	return t, err
}

// pagesOf returns the index of the pages of an account and kind. An indexed page without a record is damage: without
// the index, its counters would read as zero.
func pagesOf(page ref) path {
	return append(at(kindPages).number(int64(page.account)), byte(page.kind))
}

// noPage returns the damage of a missing page, nil when the page was never written.
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

// setPage writes a page, or deletes the page when the record is nil. existed says whether the page has a record.
func setPage(txn *table.Txn, page ref, record []byte, existed bool) error {
	if existed != (record != nil) {
		if err := listPage(txn, record != nil, page); err != nil {
			return err
		}
	}
	return setOrDelete(txn, pagePath(page), record)
}

// listPage adds a page to the index of the pages of its account and kind, or removes it when add is false.
func listPage(txn *table.Txn, add bool, page ref) error {
	f, err := snapshot{txn.Txn}.index(pagesOf(page))
	if err != nil {
		return err
	}
	if add {
		err = f.Add(page.number)
	} else {
		err = f.Remove(page.number)
	}
	f.Write(func(key, record []byte) { err = firstOf(err, setOrDelete(txn, key, record)) })
	return err
}

// typicalPageBytes is the size in bytes by which a page counts in a part of a transaction. Few pages are larger.
const typicalPageBytes = 16 << 10

// dropCounters replaces counters on a page by the record that they were deleted: their events up to a position do not
// count. Their events stay in the event log until they expire, but no counter leads to them. In a replay the page may
// be newer than the position, and have a later counter with the same number. The replay counts that counter again from
// its events. dropCounters returns the size of the new page in bytes.
func dropCounters(txn *table.Txn, counters []ref, position int64) (size int, err error) {
	p := pagePath(counters[0].page())
	record, err := snapshot{txn.Txn}.get(p)
	if err != nil {
		return 0, err
	}
	pg, err := decodePage(record)
	if err != nil {
		return 0, err
	}
	for _, of := range counters {
		pg[of.slot()] = encodeDropped(position)
	}
	page := pg.encode()
	return len(page), setPage(txn, counters[0].page(), page, record != nil)
}

// encode returns the record.
//
//	end               uvarint
//	for each missing  uvarint of 2 × position, plus 1 for a transaction with parts
func (t *inTables) encode() []byte {
	b := encodeNumber(t.end)
	for _, m := range t.missing {
		n := uint64(m.position) << 1
		if m.parts {
			n++
		}
		b = binary.AppendUvarint(b, n)
	}
	return b
}

// decodeInTables is the inverse of encode. It returns the zero value for no record.
func decodeInTables(record []byte) (t inTables, err error) {
	if record == nil {
		return t, nil
	}
	r := decoder{record}
	t.end = int64(r.uvarint())
	for len(r.rest) > 0 && !r.failed() {
		n := r.uvarint()
		t.missing = append(t.missing, missing{int64(n >> 1), n&1 == 1})
	}
	if r.failed() {
		return inTables{}, errRecord
	}
	return t, nil
}
