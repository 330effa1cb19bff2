package badgerstore

import (
	"encoding/binary"
	"errors"

	"github.com/dgraph-io/badger/v4"

	"github.com/limitkeeper/limitkeeper/storage/badgerstore/internal/table"
)

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
