package storetest

import (
	"reflect"
	"time"

	"github.com/limitkeeper/limitkeeper/core"
)

// spoil overwrites everything that v points to. A store returns copies and copies its arguments, so spoil does not change the store.
// It returns false if v has a time that is not in UTC.
func spoil(v any) (utc bool) { return spoilValue(reflect.ValueOf(v)) }

func spoilValue(v reflect.Value) (utc bool) {
	utc = true
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface:
		return v.IsNil() || spoilValue(v.Elem())
	case reflect.Slice, reflect.Array:
		for i := range v.Len() {
			utc = spoilValue(v.Index(i)) && utc
		}
	case reflect.Map:
		for _, key := range v.MapKeys() {
			v.SetMapIndex(key, reflect.Zero(v.Type().Elem()))
		}
	case reflect.Struct:
		return spoilStruct(v)
	case reflect.String:
		if v.CanSet() {
			v.SetString("spoilt")
		}
	case reflect.Uint8:
		if v.CanSet() {
			v.SetUint('x')
		}
	case reflect.Int, reflect.Int32, reflect.Int64:
		if v.CanSet() {
			v.SetInt(77)
		}
	}
	return utc
}

func spoilStruct(v reflect.Value) (utc bool) {
	utc = true
	switch x := v.Interface().(type) {
	case time.Time:
		if v.CanSet() {
			v.Set(reflect.ValueOf(x.Add(time.Hour)))
		}
		return x.Location() == time.UTC
	case core.Terms: // copies share the other members
		if v.CanSet() {
			v.FieldByName("PlanName").SetString("spoilt")
		}
		return true
	}
	for i := range v.NumField() {
		if v.Type().Field(i).IsExported() {
			utc = spoilValue(v.Field(i)) && utc
		}
	}
	return utc
}

// copyOf returns a deep copy.
func copyOf[T any](v T) T { return copyOfValue(reflect.ValueOf(&v).Elem()).Interface().(T) }

func copyOfValue(v reflect.Value) reflect.Value {
	c := reflect.New(v.Type()).Elem()
	c.Set(v)
	switch {
	case v.Kind() == reflect.Interface && !v.IsNil():
		c.Set(copyOfValue(v.Elem()))
	case v.Kind() == reflect.Pointer && !v.IsNil():
		c.Set(copyOfValue(v.Elem()).Addr())
	case v.Kind() == reflect.Slice && !v.IsNil():
		c.Set(reflect.MakeSlice(v.Type(), v.Len(), v.Len()))
		for i := range v.Len() {
			c.Index(i).Set(copyOfValue(v.Index(i)))
		}
	case v.Kind() == reflect.Map && !v.IsNil():
		c.Set(reflect.MakeMapWithSize(v.Type(), v.Len()))
		for _, key := range v.MapKeys() {
			c.SetMapIndex(key, copyOfValue(v.MapIndex(key)))
		}
	case v.Kind() == reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				c.Field(i).Set(copyOfValue(v.Field(i)))
			}
		}
	}
	return c
}
