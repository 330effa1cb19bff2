package badgerstore

import (
	"encoding/binary"
	"errors"

	"github.com/dgraph-io/badger/v4"

	"github.com/limitkeeper/limitkeeper/storage/record"
)

// A page is one record with the counters of 64 consecutive keys, or users, of an account. So a checkpoint of many
// counters writes few records to Badger.
//
//	cell     1 byte: the number within the page
//	state    a text, see counterState.code
const (
	pageBits  = 6
	pageCells = 1 << pageBits
)

// page returns the page of a counter. Its number is the number of the page.
func (r ref) page() ref { return ref{r.number >> pageBits, r.account, r.kind} }

// pageOf returns the page at a path.
func pageOf(p path) (page ref, ok bool) {
	r := record.NewReader(p)
	r.Uint(1) // the kind of the record
	page.account, page.kind, page.number = uint32(r.Uint(8)), uint32(r.Uint(1)), int64(r.Uint(8))
	return page, r.Ended() && !r.Failed()
}

// counter returns the counter in a cell of a page.
func (r ref) counter(cell byte) ref { return ref{r.number<<pageBits | int64(cell), r.account, r.kind} }

// cell returns the cell of a counter on its page.
func (r ref) cell() byte { return byte(r.number & (pageCells - 1)) }

// pagePath returns the path of a page of counters.
func pagePath(page ref) path {
	return append(at(kindCounter).number(int64(page.account)), byte(page.kind)).number(page.number)
}

// page has the records of the counters of a page by cell, nil for an empty cell.
type page [pageCells][]byte

// decodePage decodes a page. The result shares the memory of b.
func decodePage(b []byte) (*page, error) {
	p := new(page)
	for r := record.NewReader(b); !r.Ended(); {
		cell := byte(r.Uint(1))
		state := r.Take(r.Uvarint())
		if r.Failed() || cell >= pageCells {
			return nil, errRecord
		}
		p[cell] = state
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
	for cell, record := range p {
		if record != nil {
			b = binary.AppendUvarint(append(b, byte(cell)), uint64(len(record)))
			b = append(b, record...)
		}
	}
	if len(b) == 0 {
		return nil
	}
	return b
}

// onPage calls fn with a page, an empty one when it was never written. fn must not keep its argument.
func (r view) onPage(of ref, fn func(*page) error) error {
	err := r.read(pagePath(of), func(record []byte) error {
		p, err := decodePage(record)
		if err != nil {
			return err
		}
		return fn(p)
	})
	if errors.Is(err, badger.ErrKeyNotFound) {
		if err = r.unlisted(pagesOf(of), of.number, pagePath(of)); err == nil {
			err = fn(new(page))
		}
	}
	return err
}

// pagesOf returns the index of the pages of an account and kind. An indexed page without a record is damage: without
// the index, its counters would read as zero.
func pagesOf(page ref) path {
	return append(at(kindPages).number(int64(page.account)), byte(page.kind))
}

// changePage runs change on a page, an empty one when it was never written, and writes the page when change returns true. It returns the
// size of the new page in bytes.
func changePage(txn *badger.Txn, of ref, change func(*page) (bool, error)) (size int, err error) {
	old, err := view{txn}.get(pagePath(of))
	if err != nil {
		return 0, err
	}
	p, err := decodePage(old)
	if err != nil {
		return 0, err
	}
	if write, err := change(p); err != nil || !write {
		return 0, err
	}
	record := p.encode()
	if err := setOrDelete(txn, pagePath(of), record); err != nil || (old != nil) == (record != nil) {
		return len(record), err
	}
	f, err := view{txn}.index(pagesOf(of))
	if err != nil {
		return 0, err
	}
	err = f.Put(of.number, record != nil)
	f.Write(func(key, record []byte) { err = firstOf(err, setOrDelete(txn, key, record)) })
	return len(record), err
}

// dropCounters replaces counters on a page by the record that they were deleted: their events up to a position do not
// count. Their events stay in the event log until they expire, but no counter leads to them. In a replay the page may
// be newer than the position, and have a later counter with the same number. The replay counts that counter again from
// its events. dropCounters returns the size of the new page in bytes.
func dropCounters(txn *badger.Txn, counters []ref, position int64) (size int, err error) {
	return changePage(txn, counters[0].page(), func(p *page) (bool, error) {
		for _, of := range counters {
			p[of.cell()] = encodeDropped(position)
		}
		return true, nil
	})
}
