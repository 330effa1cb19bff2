// Package record encodes resources as JSON, and numbers and texts as binary records, for the
// stores.
package record

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
)

// ErrDamaged means that a record cannot be decoded.
var ErrDamaged = errors.New("a record is damaged")

// Encode returns a resource as JSON. Unlike [json.Marshal] it keeps metadata byte for byte.
func Encode(resource any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(resource); err != nil {
		return nil, fmt.Errorf("encode %T: %w", resource, err)
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}

// Decode returns a resource that [Encode] encoded, with its times in UTC.
func Decode[T any](record []byte) (*T, error) {
	resource := new(T)
	if err := json.Unmarshal(record, resource); err != nil {
		return nil, fmt.Errorf("decode %T: %w", resource, err)
	}
	InUTC(resource)
	return resource, nil
}

// InUTC converts every time of a resource to UTC. [Encode] keeps the zone of a time, because the
// last hours of the year 9999 have no UTC form in JSON. A value of any other type does not change.
func InUTC(resource any) {
	utc := func(times ...*time.Time) {
		for _, t := range times {
			if t != nil {
				*t = t.UTC()
			}
		}
	}
	switch r := resource.(type) {
	case *core.Account:
		utc(&r.CreatedAt)
	case *core.OwnerKey:
		utc(&r.CreatedAt, r.ExpiresAt, r.RevokedAt, r.LastUsedAt)
	case *core.Access:
		for i := range r.Links {
			utc(&r.Links[i].ExpiresAt)
		}
		for i := range r.Sessions {
			se := &r.Sessions[i]
			utc(&se.CreatedAt, &se.SeenAt, &se.FormsAfter)
			for j := range se.SpentForms {
				utc(&se.SpentForms[j].At)
			}
		}
	case *core.User:
		utc(&r.CreatedAt, &r.UpdatedAt)
	case *core.Plan:
		utc(&r.CreatedAt, &r.UpdatedAt)
	case *core.Key:
		utc(&r.CreatedAt, &r.UpdatedAt, r.ExpiresAt)
		for i := range r.Previous {
			utc(&r.Previous[i].Until)
		}
	}
}
