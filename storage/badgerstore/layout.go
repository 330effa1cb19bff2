package badgerstore

import (
	"encoding/binary"
	"errors"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
)

// schema is the version of the layout below. A store that was written with a later
// one is refused. Before 3 there were no days: see page.go for what is different. Before 4 a
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
//	C counters     account's number, kind,      a page of counters, see page.go
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
	kindRepeat      = 'R'
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
