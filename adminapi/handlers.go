package adminapi

import (
	"context"
	"net/http"

	"github.com/limitkeeper/limitkeeper/core"
)

// The handlers of the routes that differ in the method of the service that they call. of is [ofUser], [ofPlan] or [ofKey]: it gives
// the id in the path.

// get answers with a resource, or with its usage.
func get[K, T any](of func(func(*call, K) error) handler, read func(*core.Service, context.Context, string, K) (T, error), answer replier[T]) handler {
	return of(func(c *call, id K) error {
		v, err := read(c.svc, c.ctx(), c.account, id)
		return answer(c, http.StatusOK, v, err)
	})
}

// create creates a resource from the members of the body.
func create[P, T any](body func(*members) P, create func(*core.Service, context.Context, string, P) (T, error), answer replier[T]) handler {
	return func(c *call) error {
		p, err := decode(c, body)
		if err != nil {
			return err
		}
		v, err := create(c.svc, c.ctx(), c.account, p)
		return answer(c, http.StatusCreated, v, err)
	}
}

// update sets the members of a resource that are in the body.
func update[K, P, T any](of func(func(*call, K) error) handler, body func(*members) P,
	update func(*core.Service, context.Context, string, K, P) (T, error), answer replier[T]) handler {
	return of(func(c *call, id K) error {
		p, err := decode(c, body)
		if err != nil {
			return err
		}
		v, err := update(c.svc, c.ctx(), c.account, id, p)
		return answer(c, http.StatusOK, v, err)
	})
}

func remove[K any](of func(func(*call, K) error) handler, noun string, remove func(*core.Service, context.Context, string, K) error) handler {
	return of(func(c *call, id K) error {
		if err := remove(c.svc, c.ctx(), c.account, id); err != nil {
			return err
		}
		return c.write(http.StatusOK, single{object{{"message", noun + " deleted successfully"}}})
	})
}

// replier answers with a resource, or returns err.
type replier[T any] func(c *call, status int, v T, err error) error

// reply answers with the JSON form of a resource.
func reply[T any](view func(T) object) replier[T] {
	return func(c *call, status int, v T, err error) error {
		if err != nil {
			return err
		}
		return c.write(status, single{view(v)})
	}
}

// list answers with the page of the query.
func list[T, V any](c *call, view func([]T) ([]V, error), get func(core.Page) ([]T, int, error)) error {
	items, total, err := pageOf(c, get)
	if err != nil {
		return err
	}
	views, err := view(items)
	if err != nil {
		return err
	}
	return c.write(http.StatusOK, object{{"data", views}, {"count", total}}) // count is of all pages
}

// pageOf returns the items on the page of the query, and the number of items on all pages.
func pageOf[T any](c *call, get func(core.Page) ([]T, int, error)) ([]T, int, error) {
	q := c.query()
	p := q.page()
	if q.err != nil {
		return nil, 0, q.err
	}
	return get(p)
}

// viewEach returns a function that applies view to each item. The result is never nil.
func viewEach[T, V any](view func(T) V) func([]T) ([]V, error) {
	return func(items []T) ([]V, error) {
		views := make([]V, len(items))
		for i, v := range items {
			views[i] = view(v)
		}
		return views, nil
	}
}
