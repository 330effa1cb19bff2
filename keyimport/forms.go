package keyimport

import (
	"maps"
	"slices"
	"strings"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/secrets"
)

// maxSecondWords is how many different second words a prefix may have, such as live and test of acme_live_ and
// acme_test_. More of them are taken for parts of random values.
const maxSecondWords = 4

// checkValue returns an error unless the value of a key has the characters and the length of keys.
func checkValue(value string) error {
	switch {
	case secrets.WellFormedOwnerSecret(value):
		return bad("key: the value has the form of an owner's key")
	case value == secrets.DefaultKeyPrefix:
		return bad("key: the value is only a prefix")
	case !secrets.HasKeyCharacters(value):
		return bad("key: want 1 to 256 letters, digits, _, - or =")
	}
	return nil
}

// keyForms finds out which forms of keys the account must accept.
type keyForms struct {
	accepted []string                   // prefixes of the account, and given prefixes
	given    []string                   // prefixes of the keys that the file has only by digest
	anyForm  bool                       // the account accepts any form already
	noPrefix bool                       // a key has no prefix
	words    map[string]map[string]bool // the prefixes with two words, by the first word; "" for a value without a second word
}

// add notes the form of a key.
func (f *keyForms) add(r *row) {
	switch {
	case r.value == "":
		f.noPrefix = f.noPrefix || len(f.given) == 0
		return
	case strings.HasPrefix(r.value, secrets.DefaultKeyPrefix),
		slices.ContainsFunc(f.accepted, func(p string) bool { return len(r.value) > len(p) && strings.HasPrefix(r.value, p) }):
		return
	}
	first, second := prefixesOf(r.value)
	words := f.words[first]
	switch {
	case first == "", words == nil && len(f.words) > core.MaxKeyPrefixes: // too many in any case
		f.noPrefix = true
		return
	case words == nil:
		words = map[string]bool{}
		f.words[first] = words
	}
	if len(words) <= maxSecondWords {
		words[second] = true
	}
}

// result returns the prefixes that the account must accept in addition, and whether it must accept any form. Keys with
// more prefixes than an account can have need any form.
func (f *keyForms) result() (prefixes []string, anyForm bool) {
	prefixes = slices.Clone(f.given)
	for _, first := range slices.Sorted(maps.Keys(f.words)) {
		if words := f.words[first]; words[""] || len(words) > maxSecondWords {
			prefixes = append(prefixes, first)
		} else {
			prefixes = append(prefixes, slices.Sorted(maps.Keys(words))...)
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
	valid := func(prefix string) string {
		if prefix == value || core.CheckKeyPrefix(prefix) != nil {
			return ""
		}
		return prefix
	}
	words := strings.SplitAfterN(value, "_", 3)
	first = valid(words[0])
	if len(words) == 3 && len(words[1]) > 1 && strings.Trim(words[1], "abcdefghijklmnopqrstuvwxyz") == "_" {
		second = valid(words[0] + words[1])
	}
	if first == "" {
		first, second = second, ""
	}
	return first, second
}
