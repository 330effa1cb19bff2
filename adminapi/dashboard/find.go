package dashboard

import (
	"context"
	"net/http"

	"github.com/limitkeeper/limitkeeper/core"
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
