package adminapi

import (
	"context"
	"net/http"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/service"
)

// The handlers of the routes that differ in the method of the service that they call. of is [ofUser], [ofPlan] or [ofKey]: it gives
// the id in the path.

// get answers with a resource, or with its usage.
func get[K, T any](of func(func(*call, K) error) handler, read func(*service.Service, context.Context, string, K) (T, error), answer replier[T]) handler {
	return of(func(c *call, id K) error {
		v, err := read(c.svc, c.ctx(), c.account, id)
		return answer(c, http.StatusOK, v, err)
	})
}

// create creates a resource from the members of the body.
func create[P, T any](body func(*members) P, create func(*service.Service, context.Context, string, P) (T, error), answer replier[T]) handler {
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
	update func(*service.Service, context.Context, string, K, P) (T, error), answer replier[T]) handler {
	return of(func(c *call, id K) error {
		p, err := decode(c, body)
		if err != nil {
			return err
		}
		v, err := update(c.svc, c.ctx(), c.account, id, p)
		return answer(c, http.StatusOK, v, err)
	})
}

func remove[K any](of func(func(*call, K) error) handler, noun string, remove func(*service.Service, context.Context, string, K) error) handler {
	return of(func(c *call, id K) error {
		if err := remove(c.svc, c.ctx(), c.account, id); err != nil {
			return err
		}
		return c.writeData(http.StatusOK, object{{"message", noun + " deleted successfully"}})
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
		return c.writeData(status, view(v))
	}
}

// list answers with the page of the query q.
func list[T any](c *call, q *query, view func(T) object, get func(core.Page) ([]T, int, error)) error {
	items, total, err := pageOf(q, get)
	if err != nil {
		return err
	}
	return c.writeList(viewEach(view, items), total)
}

// listOf answers with the page of the query of what belongs to a resource.
func listOf[K, R, T any](of func(func(*call, K) error) handler, owner func(*service.Service, context.Context, string, K) (R, error),
	view func(T) object, get func(*call, K, core.Page) ([]T, int, error)) handler {
	return of(func(c *call, id K) error {
		if _, err := owner(c.svc, c.ctx(), c.account, id); err != nil {
			return err
		}
		return list(c, c.query(), view, func(p core.Page) ([]T, int, error) { return get(c, id, p) })
	})
}

// pageOf returns the items on the page of the query, and the number of items on all pages, or the first error of the query.
func pageOf[T any](q *query, get func(core.Page) ([]T, int, error)) ([]T, int, error) {
	p := q.page()
	if q.err != nil {
		return nil, 0, q.err
	}
	return get(p)
}

// writeList answers with the resources on a page. count is the number on all pages.
func (c *call) writeList(views []object, count int) error {
	return c.write(http.StatusOK, object{{"data", views}, {"count", count}})
}

// viewEach applies view to each item. The result is never nil.
func viewEach[T any](view func(T) object, items []T) []object {
	views := make([]object, len(items))
	for i, v := range items {
		views[i] = view(v)
	}
	return views
}
