package redisstore

import (
	"crypto/sha256"
	"encoding/binary"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/record"
)

// encodeEntry returns what the histories hold of a request, behind what the script puts
// before it: whether it was denied, and its time.
func encodeEntry(b []byte, e *core.Entry) []byte {
	b = binary.AppendUvarint(b, uint64(e.UserID))
	b = binary.AppendUvarint(b, uint64(e.Cost))
	b = record.AppendText(b, e.KeyID)
	b = record.AppendText(b, e.Method)
	b = record.AppendText(b, e.IP)
	return record.AppendText(b, e.Endpoint)
}

// decodeEntry returns an entry of a history, see HEAD in shared.lua.
func decodeEntry(b string) (e core.Entry, err error) {
	r := record.NewReader([]byte(b))
	e.Denied = r.Uint(1) == 1
	s, ns := r.Uint(5), r.Uint(4)
	e.At = time.Unix(int64(s), int64(ns)).UTC()
	r.Uint(4) // until when it must be kept
	e.UserID, e.Cost = int64(r.Uvarint()), int64(r.Uvarint())
	e.KeyID, e.Method, e.IP, e.Endpoint = r.Text(), r.Text(), r.Text(), r.Text()
	if r.Failed() {
		return core.Entry{}, record.ErrDamaged
	}
	return e, nil
}

// digestOfID returns the stored form of a request id: 0 and the first 16 bytes of its SHA-256.
// No id of an earlier version, which is stored as it is, begins with 0.
func digestOfID(id string) string {
	sum := sha256.Sum256([]byte(id))
	return "\x00" + string(sum[:16])
}

// encodeTerms returns what is kept of the terms of a request with an id.
func encodeTerms(t *core.Terms) []byte {
	b := binary.AppendUvarint(nil, uint64(t.Period))
	b = binary.AppendUvarint(b, uint64(t.Limit))
	return record.AppendText(record.AppendText(b, t.PlanID), t.PlanName)
}

func decodeTerms(b string) (t core.Terms, err error) {
	r := record.NewReader([]byte(b))
	t.Period, t.Limit = core.Period(r.Uvarint()), int64(r.Uvarint())
	t.PlanID, t.PlanName = r.Text(), r.Text()
	if r.Failed() {
		return core.Terms{}, record.ErrDamaged
	}
	return t, nil
}
