package dashboard

import (
	"testing"

	"github.com/limitkeeper/limitkeeper/core"
)

// Each page can be parsed for each role: a mistake in a template shows here, and not at the first request for the page.
func TestTemplates(t *testing.T) {
	for _, role := range append(core.PersonRoles(), "") {
		if len(templates[role]) == 0 {
			t.Errorf("there are no pages for the role %q", role)
		}
		for name, page := range templates[role] {
			if page().Lookup("main") == nil {
				t.Errorf("the page %s has no template main", name)
			}
		}
	}
}
