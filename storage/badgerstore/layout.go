package badgerstore

import (
	"encoding/binary"
	"errors"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/resource"
)

// schema is the version of the layout below. Open refuses a store with another schema.
const schema = 1

// A key of Badger is its kind, one byte, followed by fields. A text field is its length as a uvarint and its bytes; a
// number is 8 bytes, big endian. The account is the first field, so the records of an account are adjacent.
//
//	kind           key                          value
//	V schema                                    version, uvarint
//	A account      "", number                   core.Account, JSON
//	O owner's key  "", number                   core.OwnerKey, JSON
//	I access       account                      core.Access, JSON
//	U user         account, user id             core.User, JSON
//	P plan         account, seq                 core.Plan, JSON
//	K key          account, seq                 core.Key, JSON
//	a o p k        account, id                  the number of the resource with the id; "" for a and o, as above
//	u unique       account, name, value         the id of the resource that has the value
//	d              digest, 32 bytes             account, seq
//	l last number  account, kind                the largest number given to a resource of the kind, uvarint
//	S set          account, name, node          the numbers of resources, see internal/rankset
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
	kindSchema     = 'V' // 'v' in builds before the first release
	kindAccount    = 'A'
	kindAccess     = 'I'
	kindUser       = 'U'
	kindPlan       = 'P'
	kindKey        = 'K'
	kindUnique     = 'u'
	kindOwnerKey   = 'O'
	kindAccountID  = kindAccount | 0x20
	kindOwnerKeyID = kindOwnerKey | 0x20
	kindPlanID     = kindPlan | 0x20
	kindKeyID      = kindKey | 0x20
	kindDigest     = 'd'
	kindLast       = 'l'
	kindSet        = 'S'
	kindCounter    = 'C'
	kindPages      = 'c'
	kindDay        = 'D'
	kindRequestID  = 'R'
	kindCheckpoint = 'F'

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

// recordPath returns the path of a resource. account is "" for the kinds of the registry.
func recordPath(kind resource.Kind, account string, number int64) path {
	return at(byte(kind)).text(account).number(number)
}

// idPath returns the path of the number of a resource: the lower-case letter of its kind. The number of a user is its id.
func idPath(kind resource.Kind, account, id string) path {
	return at(byte(kind) | 0x20).text(account).text(id)
}

func accessPath(account string) path         { return at(kindAccess).text(account) }
func accountIDPath(id string) path           { return idPath(resource.Account, "", id) }
func keyIDPath(account, id string) path      { return idPath(resource.Key, account, id) }
func keyPath(account string, seq int64) path { return recordPath(resource.Key, account, seq) }
func userPath(account string, id int64) path { return recordPath(resource.User, account, id) }

func uniquePath(account string, u resource.Unique) path {
	return at(kindUnique).text(account).text(u.Name).text(u.Value)
}

func setPath(account, name string) path { return at(kindSet).text(account).text(name) }

func digestPath(d core.Digest) path { return append(at(kindDigest), d[:]...) }

func lastPath(account string, kind resource.Kind) path {
	return append(at(kindLast).text(account), byte(kind))
}

// droppedPath is the path of a counter that writes deletes. It can be the path of a page of other counters: write.drop tells
// them apart, and writes have no pages.
func droppedPath(of ref) path {
	return append(at(kindCounter).number(int64(of.account)), byte(of.kind)).number(of.number)
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
