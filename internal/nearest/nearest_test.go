package nearest_test

import (
	"strings"
	"testing"

	"github.com/limitkeeper/limitkeeper/internal/nearest"
)

func TestOf(t *testing.T) {
	known := []string{"account", "plans", "users", "key_prefix"}
	for word, want := range map[string]string{
		"plan": "plans", "user": "users", "acount": "account", "keyprefix": "key_prefix", "plans": "plans",
		"x": "", "limits": "", "": "", strings.Repeat("a", 1000): "",
	} {
		if got := nearest.Of(word, known); got != want {
			t.Errorf("%.20q: got %q, want %q", word, got, want)
		}
	}
	if got := nearest.Hint("plan", known) + nearest.Hint("x", known); got != ": did you mean plans?" {
		t.Errorf("got the hints %q", got)
	}
}
