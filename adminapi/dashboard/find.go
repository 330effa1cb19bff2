package dashboard

import (
	"context"
	"net/http"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/service"
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

// found returns the requested page of a list that can be searched, and its pager. A search does not know its total.
func found[T, F any](q *request, f F,
	search func(ctx context.Context, account, text string, f F, p core.Page) (items []T, end service.Searched, err error),
	list func(ctx context.Context, account string, f F, p core.Page) (items []T, total int, err error)) ([]T, pager, error) {
	text := q.query("q")
	if text == "" {
		return listed(q, func(p core.Page) ([]T, int, error) { return list(q.r.Context(), q.account(), f, p) })
	}
	p := q.page()
	items, end, err := search(q.r.Context(), q.account(), text, f, p)
	pg := q.pager(p, len(items), -1, end.More)
	pg.Searched = end.Read
	return items, pg, err
}

// nothing finds nothing, for a form about no resource.
func nothing(*request) (none struct{}, err error) { return none, nil }

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
