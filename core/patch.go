package core

// Optional is a member of a patch that can also be cleared. The zero value leaves the member alone.
type Optional[T any] struct {
	Set   bool
	Value *T // nil clears the member
}

// Some returns an Optional that sets the member to v.
func Some[T any](v T) Optional[T] { return Optional[T]{Set: true, Value: &v} }

// Null returns an Optional that clears the member.
func Null[T any]() Optional[T] { return Optional[T]{Set: true} }

// OrZero returns the value, or the zero value if there is none.
func (o Optional[T]) OrZero() T { return OrZero(o.Value) }

// orNil returns a pointer to a value, nil for the zero value.
func orNil[T comparable](v T) *T {
	if v == *new(T) {
		return nil
	}
	return &v
}

// notNil returns a pointer to a list, to an empty one for nil: JSON has [] for it and not null.
func notNil[T any](list []T) *[]T {
	if list == nil {
		list = []T{}
	}
	return &list
}

// OrZero returns what p points to, the zero value for nil.
func OrZero[T any](p *T) (v T) {
	if p != nil {
		return *p
	}
	return v
}
