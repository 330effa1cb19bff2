package badgerstore

import (
	"encoding/binary"

	"github.com/limitkeeper/limitkeeper/core/secrets"
	"github.com/limitkeeper/limitkeeper/storage/badgerstore/internal/table"
	"github.com/limitkeeper/limitkeeper/storage/record"
	"github.com/limitkeeper/limitkeeper/storage/resource"
)

// schema is the version of the layout below. Open refuses a store with another schema.
const schema = 4

// A key of Badger is its kind, one byte, followed by fields. A text field is its length as a uvarint and its bytes; a
// number is 8 bytes, big endian. The account is the first field, so the records of an account are adjacent.
//
//	kind           key                          value
//	V schema                                    version, uvarint
//	A account      "", number                   core.Account, JSON
//	O owner's key  "", number                   core.OwnerKey, JSON
//	I access       account                      core.Access, JSON
//	T prices       account                      core.Prices, JSON
//	U user         account, user id             core.User, JSON
//	P plan         account, seq                 core.Plan, JSON
//	K key          account, seq                 core.Key, JSON
//	W webhook      account, seq                 core.Webhook, JSON
//	N event        account, seq                 core.Event, JSON: for webhooks, not an event of the event log
//	J attempt      account, seq                 core.Attempt, JSON
//	a o p k w n j  account, id                  the number of the resource with the id; "" for a and o, as above
//	u unique       account, name, value         the id of the resource that has the value
//	d              digest, 32 bytes             account, seq
//	l last number  account, kind                the largest number given to a resource of the kind, uvarint
//	S set          account, name, node          the numbers of resources, see internal/rankset
//	Q audit        account, log, number         core.AuditEntry, JSON; the log is 0, or 1 for that of the registry
//	q audit log    account, log                 the numbers and sizes of the entries, see audit.go
//	C counters     account's number, kind,      a page of counters, see below
//	               number of the page
//	c pages        account's number, kind, node the numbers of all pages, see internal/rankset
//	D day          account's number, kind,      a day or an hour of a page of counters, see archive.go
//	               number of the page, date
//	G deleted      account, number of a chunk   days or hours of the deleted users, JSON, see record.AddDeleted
//	R request id   account's number, kind,      the position of the request's event in the event log
//	               number of the key or user,
//	               id
//	H open hold    account's number, user id,   the position of the hold's event in the event log
//	               id
//	F mark         -                            the mark of the last checkpoint, see checkpoint.go
//	E indexed      -                            the database has no change from this position on, uvarint
//
// The events of counters are in the event log: see storage/eventlog.
const (
	kindSchema     = 'V' // 'v' in builds before the first release
	kindAccount    = 'A'
	kindAccess     = 'I'
	kindPrices     = 'T'
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
	kindAudit      = 'Q'
	kindAuditLog   = kindAudit | 0x20
	kindCounter    = 'C'
	kindPages      = 'c'
	kindDay        = 'D'
	kindDeleted    = 'G'
	kindRequestID  = 'R'
	kindHold       = 'H'
	kindCheckpoint = 'F'
	kindIndexed    = 'E' // beside the pages: a table with a wide range of records is merged with many others
)

// path is a key of the database under construction.
type path []byte

// at begins the path of a kind. Its capacity is enough for most paths.
func at(kind byte) path { return append(make(path, 0, 80), kind) }

// text appends a text with its length, so no text is a prefix of another one.
func (p path) text(s string) path {
	return record.AppendText(p, s)
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

func accountIDPath(id string) path           { return idPath(resource.Account, "", id) }
func keyIDPath(account, id string) path      { return idPath(resource.Key, account, id) }
func keyPath(account string, seq int64) path { return recordPath(resource.Key, account, seq) }
func userPath(account string, id int64) path { return recordPath(resource.User, account, id) }

func uniquePath(account string, u resource.Unique) path {
	return at(kindUnique).text(account).text(u.Name).text(u.Value)
}

func setPath(account, name string) path { return at(kindSet).text(account).text(name) }

func digestPath(d secrets.Digest) path { return append(at(kindDigest), d[:]...) }

func lastPath(account string, kind resource.Kind) path {
	return append(at(kindLast).text(account), byte(kind))
}

// errRecord means that a record cannot be decoded.
var errRecord = error(&table.DamageError{File: "*" + table.Suffix, What: "a record cannot be decoded"})

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

func decodeRef(b []byte) (account string, number int64, err error) {
	r := record.NewReader(b)
	account, number = r.Text(), int64(r.Uint(8))
	if r.Failed() {
		return "", 0, errRecord
	}
	return account, number, nil
}
