// Package record encodes resources as JSON, and numbers and texts as binary records, for the
// stores.
package record

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"time"

	jsonv2 "github.com/go-json-experiment/json"
	jsonv1 "github.com/go-json-experiment/json/v1"
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

// asV1 makes jsonv2 read records that package json has written. For a key, jsonv2 takes 4 µs and 1 allocation, and package json takes 10 µs and 11
// allocations. A report of a million keys decodes each of them.
var asV1 = jsonv1.DefaultOptionsV1()

// Decode returns a resource that [Encode] encoded, with its times in UTC.
func Decode[T any](record []byte) (*T, error) {
	resource := new(T)
	if err := jsonv2.Unmarshal(record, resource, asV1); err != nil {
		return nil, fmt.Errorf("decode %T: %w", resource, err)
	}
	InUTC(resource)
	return resource, nil
}

// InUTC converts every time of a resource, or of another struct, to UTC. [Encode] keeps the zone of a time, because the
// last hours of the year 9999 have no UTC form in JSON.
func InUTC(resource any) { inUTC(reflect.ValueOf(resource)) }

func inUTC(v reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			inUTC(v.Elem())
		}
	case reflect.Slice:
		for i := 0; i < v.Len() && v.Type().Elem().Kind() == reflect.Struct; i++ {
			inUTC(v.Index(i))
		}
	case reflect.Struct:
		if t, ok := v.Addr().Interface().(*time.Time); ok {
			*t = t.UTC()
			return
		}
		for i := range v.NumField() {
			if v.Field(i).CanSet() {
				inUTC(v.Field(i))
			}
		}
	}
}
