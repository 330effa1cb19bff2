package service

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/secrets"
)

// Match is one result of a search: a key with its user, a user, or a plan.
type Match struct {
	By   MatchedBy
	User *core.User // nil for a plan
	Key  *core.Key  // nil for a user or a plan
	Plan *core.Plan // nil for a user or a key
}

// MatchedBy is the member that is equal to the text of a search, or contains it.
type MatchedBy string

// The members that a search compares with its text.
const (
	ByValue      MatchedBy = "value"       // of a key, present or former
	ByHint       MatchedBy = "hint"        // of a key
	ByID         MatchedBy = "id"          // of a user, key, plan or hold
	ByEmail      MatchedBy = "email"       // of a user
	ByExternalID MatchedBy = "external_id" // of a user
	ByIPAddress  MatchedBy = "ip_address"  // of requests of a key or user
	ByName       MatchedBy = "name"        // of a user, key or plan
)

// SearchResult is the answer of [Service.Search].
type SearchResult struct {
	Matches []Match

	// Complete is false when there may be more matches: names that were not read, matches beyond the limit, or callers of an address that were
	// forgotten or that another node has seen.
	Complete  bool
	NamesRead int // number of users, keys and plans whose names were compared; 0 if another member matched
}

// The bounds of a search.
const (
	MaxSearchText = 1020 // bytes: an external id has at most 255 characters
	namesPerKind  = 500  // users, keys and plans whose names are compared, oldest first
)

// Search finds the users, keys and plans that a text identifies in an account. The text is one of: the value of a key, alone or in a longer text such as
// a header field, the hint of a key or its last four characters, the email or external id of a user, the id of a user, key, plan or hold, or an IP
// address of requests. Search looks these up in indexes. The index of addresses has the 20,000 latest addresses that this node has seen since its start.
// Without such a match, Search looks for the text in the names of the first 500 users, keys and plans, case-insensitively. It returns at most limit
// matches.
func (s *Service) Search(ctx context.Context, account, text string, limit int) (r SearchResult, err error) {
	l := lookUp{s: s, ctx: ctx, account: account, text: CleanSearch(text)}
	if l.text == "" || len(l.text) > MaxSearchText {
		return r, core.Invalid("q", "Give a text of 1 to 1020 bytes to search for")
	}
	r.Complete, err = l.exact()
	if err == nil && len(l.matches) == 0 {
		r.Complete, err = l.names(limit, &r.NamesRead)
	}
	r.Matches = l.matches
	if l.address {
		r.Complete = false
	}
	if len(r.Matches) > limit {
		r.Matches, r.Complete = r.Matches[:limit], false
	}
	return r, err
}

// CleanSearch removes the surroundings of a pasted text: space, quotes, and the name and scheme of a header field.
func CleanSearch(text string) string {
	for _, before := range []string{"", "Authorization:", "X-API-Key:", "Bearer "} {
		text = strings.Trim(text, " \t\r\n\"'`<>")
		if len(text) > len(before) && strings.EqualFold(text[:len(before)], before) {
			text = text[len(before):]
		}
	}
	return strings.Trim(text, " \t\r\n\"'`<>")
}

// SearchHoldsSecret reports whether a text to search for is, or may be, the value of a key. Such a text does not belong in a URL, because servers
// log URLs.
func (s *Service) SearchHoldsSecret(ctx context.Context, account, text string) (bool, error) {
	values := valuesIn(CleanSearch(text))
	mayBe := func(prefix string) bool {
		return slices.ContainsFunc(values, func(v string) bool { return secrets.HasForm(v, prefix) })
	}
	if secrets.HoldsSecret(text) || mayBe(secrets.DefaultKeyPrefix) {
		return true, nil
	}
	a, err := s.cachedAccount(ctx, account)
	if err != nil {
		return false, err
	}
	if slices.ContainsFunc(a.KeyPrefixes, mayBe) {
		return true, nil
	}
	are, err := s.AreKeys(ctx, account, values, nil)
	return slices.Contains(are, true), err
}

// valuesIn returns the parts of a text that may be the value of a key. These are the whole text, and each run of characters that a value may have. Of a run
// such as key=value, the part after each = is also returned. A part of a run has at least 8 bytes, which bounds the number of parts.
func valuesIn(text string) (list []string) {
	add := func(s string) {
		if secrets.HasKeyCharacters(s) && !slices.Contains(list, s) {
			list = append(list, s)
		}
	}
	add(text)
	for run := range strings.FieldsFuncSeq(text, func(r rune) bool { return r >= utf8.RuneSelf || !secrets.HasKeyCharacters(string(r)) }) {
		const minRun = 8
		for ; len(run) >= minRun; _, run, _ = strings.Cut(run, "=") {
			add(run)
		}
	}
	return list
}

// lookUp is a search for one text.
type lookUp struct {
	s       *Service
	ctx     context.Context
	account string
	text    string
	matches []Match
	address bool // the text is an address
}

// add adds a match, unless the user, key or plan is missing or a match already. The user of a key need not be given.
func (l *lookUp) add(by MatchedBy, u *core.User, k *core.Key, p *core.Plan, err error) error {
	if errors.Is(err, core.ErrUserNotFound) || errors.Is(err, core.ErrKeyNotFound) || errors.Is(err, core.ErrPlanNotFound) || errors.Is(err, core.ErrHoldNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	if k != nil {
		if u, err = l.s.store.User(l.ctx, l.account, k.UserID); err != nil {
			return l.add(by, nil, nil, nil, err)
		}
	}
	if u == nil && p == nil {
		return nil
	}
	same := func(m Match) bool {
		return (m.Key == nil) == (k == nil) && (m.Plan == nil) == (p == nil) && (k == nil || m.Key.ID == k.ID) && (p == nil || m.Plan.ID == p.ID) && (u == nil || m.User.ID == u.ID)
	}
	if !slices.ContainsFunc(l.matches, same) {
		l.matches = append(l.matches, Match{by, u, k, p})
	}
	return nil
}

// exact adds the matches of the indexes. It reports whether the indexes have no more matches.
func (l *lookUp) exact() (complete bool, err error) {
	if err := l.byValue(); err != nil || len(l.matches) > 0 {
		return true, err
	}
	for _, look := range []func() error{l.byUserID, l.byID, l.byMembersOfUser, l.byAddress} {
		if err := look(); err != nil {
			return false, err
		}
	}
	return l.byHint()
}

func (l *lookUp) byValue() error {
	var digests []secrets.Digest
	for _, v := range valuesIn(l.text) {
		digests = append(digests, secrets.DigestOf(v))
	}
	keys, err := l.s.KeysByDigest(l.ctx, digests)
	for _, k := range keys {
		if err == nil && k != nil && k.AccountID == l.account {
			err = l.add(ByValue, nil, k, nil, nil)
		}
	}
	return err
}

func (l *lookUp) byUserID() error {
	n, err := strconv.ParseInt(l.text, 10, 64)
	if err != nil || n < 1 || strconv.FormatInt(n, 10) != l.text {
		return nil
	}
	u, err := l.s.store.User(l.ctx, l.account, n)
	return l.add(ByID, u, nil, nil, err)
}

func (l *lookUp) byKeyID() error {
	if !secrets.HasKeyCharacters(l.text) { // ids have the characters of keys
		return nil
	}
	k, err := l.s.store.Key(l.ctx, l.account, l.text)
	return l.add(ByID, nil, k, nil, err)
}

// byID adds a key, a plan, or the caller of a hold.
func (l *lookUp) byID() error {
	if !secrets.HasKeyCharacters(l.text) {
		return nil
	}
	if err := l.byKeyID(); err != nil {
		return err
	}
	p, err := l.s.store.Plan(l.ctx, l.account, l.text)
	if err := l.add(ByID, nil, nil, p, err); err != nil {
		return err
	}
	h, err := l.s.store.Hold(l.ctx, l.account, l.text)
	if err != nil {
		return l.add(ByID, nil, nil, nil, err)
	}
	return l.addCaller(ByID, core.CounterID{KeyID: h.KeyID, UserID: h.UserID})
}

// addCaller adds the key of a counter, or its user if it has no key.
func (l *lookUp) addCaller(by MatchedBy, of core.CounterID) error {
	if of.KeyID != "" {
		k, err := l.s.store.Key(l.ctx, l.account, of.KeyID)
		return l.add(by, nil, k, nil, err)
	}
	u, err := l.s.store.User(l.ctx, l.account, of.UserID)
	return l.add(by, u, nil, nil, err)
}

func (l *lookUp) byMembersOfUser() error {
	for i, f := range []core.UserFilter{{Email: l.text}, {ExternalID: l.text}} {
		list, _, err := l.s.store.Users(l.ctx, l.account, f, core.Page{Number: 1, Size: 1})
		if err != nil {
			return err
		}
		for _, u := range list {
			if err := l.add([]MatchedBy{ByEmail, ByExternalID}[i], u, nil, nil, nil); err != nil {
				return err
			}
		}
	}
	return nil
}

func (l *lookUp) byAddress() error {
	ip, ok := parseAddress(l.text)
	l.address = ok
	for _, id := range l.s.addresses.callers(l.account, ip) {
		if err := l.addCaller(ByIPAddress, id); err != nil {
			return err
		}
	}
	return nil
}

// byHint adds the keys whose hint is the text, or ends with the text if it has four characters. It reports whether it has read all keys of the index
// whose hints end with the same characters.
func (l *lookUp) byHint() (complete bool, err error) {
	prefix, tail, cut := strings.Cut(strings.Replace(l.text, "...", "…", 1), "…")
	if !cut {
		prefix, tail = "", l.text
	}
	if len(tail) != secrets.HintLength {
		return true, nil
	}
	f := core.KeyFilter{HintTail: tail[len(tail)-core.HintTailLength:]}
	keys, total, err := l.s.store.Keys(l.ctx, l.account, f, core.Page{Number: 1, Size: core.ReadSize})
	for _, k := range keys {
		if err == nil && strings.HasPrefix(k.Hint, prefix) && strings.HasSuffix(k.Hint, "…"+tail) {
			err = l.add(ByHint, nil, k, nil, nil)
		}
	}
	return total <= len(keys), err
}

// names adds users, keys and plans with the text in their names, at most one more than limit. It adds the number of names that it has read to read. It
// reports whether the account has no more matches.
func (l *lookUp) names(limit int, read *int) (complete bool, err error) {
	folded, page, complete := strings.ToLower(l.text), core.Page{Number: 1, Size: namesPerKind}, true
	matches := func(name string, of, total int) bool {
		if of == 0 {
			*read, complete = *read+min(total, namesPerKind), complete && total <= namesPerKind
		}
		return len(l.matches) <= limit && strings.Contains(strings.ToLower(name), folded)
	}
	users, n, err := l.s.store.Users(l.ctx, l.account, core.UserFilter{}, page)
	for i, u := range users {
		if matches(u.Name, i, n) && err == nil {
			err = l.add(ByName, u, nil, nil, nil)
		}
	}
	if err != nil {
		return false, err
	}
	keys, n, err := l.s.store.Keys(l.ctx, l.account, core.KeyFilter{}, page)
	for i, k := range keys {
		if matches(k.Name, i, n) && err == nil {
			err = l.add(ByName, nil, k, nil, nil)
		}
	}
	if err != nil {
		return false, err
	}
	plans, n, err := l.s.store.Plans(l.ctx, l.account, page)
	for i, p := range plans {
		if matches(p.Name, i, n) && err == nil {
			err = l.add(ByName, nil, nil, p, nil)
		}
	}
	return complete && len(l.matches) <= limit, err
}
