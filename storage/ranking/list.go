package ranking

import (
	"cmp"
	"iter"
	"slices"
	"strings"
)

// maxChunk is the maximum number of items in a chunk. A larger chunk is split in two. An insertion moves at most 12 KB.
const maxChunk = 512

// list has items in the order of their scores, the highest first; items with the same score are sorted by name. The zero value is empty. A list is not
// safe for concurrent use. put and remove take a microsecond in a list of 100,000 items. atLeast and after skip whole chunks.
type list struct {
	chunks [][]item // sorted; no chunk is empty
	size   int
}

// item is a name with its score.
type item struct {
	score int64
	name  string
}

func (a item) compare(b item) int {
	return cmp.Or(cmp.Compare(b.score, a.score), strings.Compare(a.name, b.name))
}

// len returns the number of items.
func (l *list) len() int { return l.size }

// chunkOf returns the index of the chunk that has the item, or would have it.
func (l *list) chunkOf(it item) int {
	i, _ := slices.BinarySearchFunc(l.chunks, it, func(c []item, it item) int { return c[len(c)-1].compare(it) })
	return max(0, min(i, len(l.chunks)-1))
}

// put adds an item that is not in the list.
func (l *list) put(it item) {
	l.size++
	if len(l.chunks) == 0 {
		l.chunks = append(l.chunks, []item{it})
		return
	}
	i := l.chunkOf(it)
	at, _ := slices.BinarySearchFunc(l.chunks[i], it, item.compare)
	c := slices.Insert(l.chunks[i], at, it)
	if l.chunks[i] = c; len(c) > maxChunk {
		half := len(c) / 2
		l.chunks[i] = c[:half:half]
		l.chunks = slices.Insert(l.chunks, i+1, slices.Clone(c[half:]))
	}
}

// remove removes an item. It ignores a missing item.
func (l *list) remove(it item) {
	if len(l.chunks) == 0 {
		return
	}
	i := l.chunkOf(it)
	at, has := slices.BinarySearchFunc(l.chunks[i], it, item.compare)
	if !has {
		return
	}
	l.size--
	if l.chunks[i] = slices.Delete(l.chunks[i], at, at+1); len(l.chunks[i]) == 0 {
		l.chunks = slices.Delete(l.chunks, i, i+1)
	}
}

// last returns the item with the lowest score, and false for an empty list.
func (l *list) last() (last item, ok bool) {
	if l.size == 0 {
		return last, false
	}
	c := l.chunks[len(l.chunks)-1]
	return c[len(c)-1], true
}

// atLeast returns the number of items with at least a score.
func (l *list) atLeast(score int64) (n int) {
	for _, c := range l.chunks {
		if c[len(c)-1].score < score {
			i, _ := slices.BinarySearchFunc(c, score, func(it item, score int64) int {
				if it.score >= score {
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

// after returns the items after the first n.
func (l *list) after(n int) iter.Seq[item] {
	return func(yield func(item) bool) {
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
