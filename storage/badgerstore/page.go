package badgerstore

import (
	"encoding/binary"

	"github.com/dgraph-io/badger/v4"

	"github.com/limitkeeper/limitkeeper/storage/badgerstore/internal/table"
)

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
