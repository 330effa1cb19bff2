package bytetrie

import (
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// A trie has exactly the words that were added, also a word with which another one begins. Adding a word changes no other
// trie.
func TestTrieIsASet(t *testing.T) {
	words := rapid.StringMatching(`[abc_]{1,5}`)
	rapid.Check(t, func(t *rapid.T) {
		var tries []*Node // after each addition
		var added []string
		var last *Node
		for _, w := range rapid.SliceOfN(words, 1, 20).Draw(t, "words") {
			last = last.With(w)
			tries, added = append(tries, last), append(added, w)
		}
		for i, trie := range tries {
			all := " " + strings.Join(added[:i+1], " ") + " "
			for _, w := range append(rapid.SliceOfN(words, 1, 20).Draw(t, "others"), added...) {
				n, want := trie, ""
				for j := range len(w) {
					n = n.Next(w[j])
				}
				if strings.Contains(all, " "+w+" ") {
					want = w
				}
				if got := n.Word(); got != want {
					t.Fatalf("after %d words, %q: got the word %q, want %q", i+1, w, got, want)
				}
			}
		}
	})
}
