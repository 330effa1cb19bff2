package keyimport

import (
	"maps"
	"slices"
	"strings"

	"github.com/limitkeeper/limitkeeper/core"
)

// maxSecondWords is how many different second words a prefix may have, such as live and test of acme_live_ and
// acme_test_. More of them are taken for parts of random values.
const maxSecondWords = 4

// checkValue returns an error unless the value of a key has the characters and the length of keys.
func checkValue(value string) error {
	switch {
	case core.WellFormedOwnerSecret(value):
		return bad("key: the value has the form of an owner's key")
	case value == core.DefaultKeyPrefix:
		return bad("key: the value is only a prefix")
	case !core.HasKeyCharacters(value):
		return bad("key: want 1 to 256 letters, digits, _, - or =")
	}
	return nil
}

// keyForms finds out which forms of keys the account must accept.
type keyForms struct {
	accepted []string // prefixes of the account, and given prefixes
	given    []string // prefixes of the keys that the file has only by digest
	anyForm  bool     // the account accepts any form already
	noPrefix bool     // a key has no prefix
	first    map[string]*secondWords
}

// secondWords are the second words of the values whose first word is the same, unless a value has none.
type secondWords struct {
	words   map[string]bool
	without bool // a value has no second word, or there are too many words
}

// add notes the form of a key.
func (f *keyForms) add(r *row) {
	switch {
	case r.value == "":
		f.noPrefix = f.noPrefix || len(f.given) == 0
		return
	case strings.HasPrefix(r.value, core.DefaultKeyPrefix),
		slices.ContainsFunc(f.accepted, func(p string) bool { return len(r.value) > len(p) && strings.HasPrefix(r.value, p) }):
		return
	}
	first, second := prefixesOf(r.value)
	if first == "" {
		f.noPrefix = true
		return
	}
	s := f.first[first]
	if s == nil {
		if len(f.first) > core.MaxKeyPrefixes { // too many in any case
			f.noPrefix = true
			return
		}
		if f.first == nil {
			f.first = map[string]*secondWords{}
		}
		s = &secondWords{words: map[string]bool{}}
		f.first[first] = s
	}
	if second == "" || len(s.words) == maxSecondWords && !s.words[second] {
		s.without = true
	} else {
		s.words[second] = true
	}
}

// result returns the prefixes that the account must accept in addition, and whether it must accept any form. Keys with
// more prefixes than an account can have need any form.
func (f *keyForms) result() (prefixes []string, anyForm bool) {
	prefixes = slices.Clone(f.given)
	for _, first := range slices.Sorted(maps.Keys(f.first)) {
		if s := f.first[first]; s.without {
			prefixes = append(prefixes, first)
		} else {
			prefixes = append(prefixes, slices.Sorted(maps.Keys(s.words))...)
		}
	}
	anyForm = f.noPrefix
	if room := core.MaxKeyPrefixes - len(f.accepted) + len(f.given); len(prefixes) > room {
		prefixes, anyForm = prefixes[:max(room, len(f.given))], true
	}
	return prefixes, anyForm && !f.anyForm
}

// prefixesOf returns the valid prefixes of a value that end with its first and its second _, "" for none. If only the
// longer prefix is valid, it is the first one. The second word of a prefix has letters only.
func prefixesOf(value string) (first, second string) {
	end := strings.IndexByte(value, '_') + 1
	if end == 0 || end == len(value) {
		return "", ""
	}
	if core.CheckKeyPrefix(value[:end]) == nil {
		first = value[:end]
	}
	n := strings.IndexByte(value[end:], '_') + 1
	if word := value[end : end+n]; n > 1 && end+n < len(value) && strings.Trim(word, "abcdefghijklmnopqrstuvwxyz") == "_" &&
		core.CheckKeyPrefix(value[:end+n]) == nil {
		second = value[:end+n]
	}
	if first == "" {
		first, second = second, ""
	}
	return first, second
}
