package adminapi

import (
	"context"
	"slices"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"

	"github.com/limitkeeper/limitkeeper/core"
)

// The contract and the table of routes have the same operations: neither is an
// operation undocumented nor a documented one missing. Which of them need a key, and which
// parameters they take, is the same too.
func TestRoutesAreTheContract(t *testing.T) {
	doc, err := openapi3.NewLoader().LoadFromData([]byte(openapi))
	if err != nil {
		t.Fatal(err)
	}
	if err := doc.Validate(context.Background()); err != nil {
		t.Fatal(err)
	}
	inContract, params := map[string]bool{}, map[string][]string{}
	for path, item := range doc.Paths.Map() {
		for method, op := range item.Operations() {
			public := op.Security != nil && len(*op.Security) == 0
			inContract[method+" "+path] = public
			for _, p := range slices.Concat(item.Parameters, op.Parameters) {
				if p.Value.In == "query" {
					params[method+" "+path] = append(params[method+" "+path], p.Value.Name)
				}
			}
		}
	}
	for _, rt := range routes {
		op := rt.method + " " + base + rt.path
		public, ok := inContract[op]
		if !ok {
			t.Errorf("openapi.yaml lacks %s", op)
		}
		if public != rt.public {
			t.Errorf("%s needs no key: openapi.yaml says %v, routes.go %v", op, public, rt.public)
		}
		if got, want := slices.Sorted(slices.Values(rt.params)), slices.Sorted(slices.Values(params[op])); !slices.Equal(got, want) {
			t.Errorf("%s: routes.go has the parameters %q, openapi.yaml %q", op, got, want)
		}
		delete(inContract, op)
	}
	for op := range inContract {
		t.Errorf("routes.go lacks %s", op)
	}
}

// No operation is in the table twice: the second would never be called.
func TestRoutesAreDistinct(t *testing.T) {
	var seen []string
	for _, rt := range routes {
		op := rt.method + " " + rt.path
		if slices.Contains(seen, op) {
			t.Errorf("%s is in the table twice", op)
		}
		seen = append(seen, op)
	}
	if len(seen) == 0 {
		t.Error("the table is empty")
	}
}

// Each operation says which permission it needs, unless it is public.
func TestRoutesHavePermissions(t *testing.T) {
	for _, rt := range routes {
		if needs := rt.need != core.PermitNothing; needs == rt.public {
			t.Errorf("%s %s: public: %v, needs a permission: %v", rt.method, rt.path, rt.public, needs)
		}
	}
}
