// Package bytetrie has an immutable trie of words. Adding a word returns a new trie, which shares the unchanged nodes, so readers
// need no lock.
package bytetrie

import (
	"slices"
	"strings"
)

// Node is a node of a trie, and the trie of all words behind it. Nil is the empty trie.
type Node struct {
	word  string  // the whole word that ends here, "" for none
	bytes string  // the next bytes
	nodes []*Node // the node behind each next byte
}

// With returns the trie with another word, which is not empty.
func (n *Node) With(word string) *Node { return n.with(word, word) }

// with returns the trie with a word whose bytes from here on are path.
func (n *Node) with(path, word string) *Node {
	var c Node
	if n != nil {
		c = *n
	}
	if path == "" {
		c.word = word
		return &c
	}
	c.nodes = slices.Clone(c.nodes)
	i := strings.IndexByte(c.bytes, path[0])
	if i < 0 {
		i = len(c.bytes)
		c.bytes += path[:1]
		c.nodes = append(c.nodes, nil)
	}
	c.nodes[i] = c.nodes[i].with(path[1:], word)
	return &c
}

// Next returns the node behind a byte, nil for none.
func (n *Node) Next(c byte) *Node {
	if n == nil {
		return nil
	}
	if i := strings.IndexByte(n.bytes, c); i >= 0 {
		return n.nodes[i]
	}
	return nil
}

// Word returns the whole word that ends at the node, "" for none.
func (n *Node) Word() string {
	if n == nil {
		return ""
	}
	return n.word
}
