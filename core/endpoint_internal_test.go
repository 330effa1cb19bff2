package core

import (
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// The short cut for paths that are their own normal form takes no other path.
func TestIsNormal(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := strings.Join(rapid.SliceOfN(rapid.SampledFrom([]string{"/", ".", "..", "a", "B", "7", "-", "_", "%2e", "%", ";", `\`, "?", "#", " ", "é", "\x00", "~"}), 0, 12).Draw(t, "path"), "")
		if !isNormal(text) {
			return
		}
		if !isPlain(text) || strings.ContainsAny(text, ";%"+ambiguous) || strings.HasPrefix(text, "/") && caddyPath(text) != text || strings.ToLower(text) != text {
			t.Errorf("%q is not its own normal form", text)
		}
	})
}
