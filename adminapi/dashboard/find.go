package dashboard

import (
	"context"
	"net/http"

	"github.com/limitkeeper/limitkeeper/core"
)

// of returns a function that makes a handler of one for the resource in the path, which find reads.
func of[T any](find func(*request) (T, error)) func(func(*request, T) error) handler {
	return func(h func(*request, T) error) handler {
		return func(q *request) error {
			v, err := find(q)
			if err != nil {
				return err
			}
			return h(q, v)
		}
	}
}

// The resources in paths.
var (
	ofKey = of(func(q *request) (*core.Key, error) {
		return q.svc.Key(q.r.Context(), q.account(), q.r.PathValue("id"))
	})
	ofOwnerKey = of((*request).ownerKey)
	ofPlan     = of(func(q *request) (*core.Plan, error) {
		return q.svc.Plan(q.r.Context(), q.account(), q.r.PathValue("id"))
	})
	ofUser = of(func(q *request) (*core.User, error) { return q.user(q.r.PathValue("id")) })
)

// nilIfMissing returns nil instead of a not-found error.
func nilIfMissing[T any](v *T, err error) (*T, error) {
	if statuses[core.ErrorCode(err)] == http.StatusNotFound {
		return nil, nil
	}
	return v, err
}

// cachedLookup returns a function that reads a resource by id, and each resource only once. The
// function returns nil for an id that does not exist.
func cachedLookup[K comparable, T any](q *request, read func(context.Context, string, K) (*T, error)) func(K) (*T, error) {
	known := map[K]*T{}
	return func(id K) (*T, error) {
		if v, ok := known[id]; ok {
			return v, nil
		}
		v, err := nilIfMissing(read(q.r.Context(), q.account(), id))
		if err == nil {
			known[id] = v
		}
		return v, err
	}
}
