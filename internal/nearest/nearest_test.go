package nearest_test

import (
	"strings"
	"testing"

	"github.com/limitkeeper/limitkeeper/internal/nearest"
)

func TestHint(t *testing.T) {
	known := []string{"account", "plans", "users", "key_prefix"}
	for word, want := range map[string]string{
		"plan": "plans", "user": "users", "acount": "account", "keyprefix": "key_prefix", "plans": "plans",
		"x": "", "limits": "", "": "", strings.Repeat("a", 1000): "",
	} {
		if want != "" {
			want = ": did you mean " + want + "?"
		}
		if got := nearest.Hint(word, known); got != want {
			t.Errorf("%.20q: got %q, want %q", word, got, want)
		}
	}
}
