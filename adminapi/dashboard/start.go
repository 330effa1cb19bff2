package dashboard

import (
	"encoding/json"
	"errors"
	"net/http"
	"regexp"
	"slices"
	"strings"

	"github.com/limitkeeper/limitkeeper/core"
)

type startView struct {
	API, Validate        string // addresses, quoted for a POSIX shell
	ValidateInJavaScript string // the same as Validate, as a string literal
	KeyPrefix            string
	Account              string // the name, as an argument in a Caddyfile
	First                *firstRequest
}

// firstRequest is the first request of an account.
type firstRequest struct {
	Day   core.Date
	Entry *core.Entry // nil if unknown
	User  *core.User  // the user of the request
	Key   *core.Key   // nil if the key was deleted
}

func startPage(q *request) error {
	first, err := q.firstRequest()
	switch {
	case err != nil:
		return err
	case q.part("first") && first == nil:
		return q.unchanged()
	case q.part("first"):
		return q.renderPart("start", "first", first)
	}
	api := "https://" + q.r.Host + "/functions/v1"
	literal, err := json.Marshal(api + "/validate") // JSON strings are JavaScript since ECMAScript 2019 (ECMA-262 section 12.9.4)
	if err != nil {
		return err
	}
	a := q.signedIn.Account
	return q.render(http.StatusOK, "start", "Quick start", startView{shellWord(api), shellWord(api + "/validate"), string(literal),
		a.PrefixOfNewKeys(), caddyWord(a.Name), first})
}

// shellWord quotes a text for a POSIX shell.
func shellWord(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// bareWord matches Caddyfile tokens that need no quotes.
var bareWord = regexp.MustCompile(`^[A-Za-z0-9._@-]+$`)

// caddyWord quotes an argument for a Caddyfile. It escapes braces, which would start placeholders. A
// text with backquotes becomes a heredoc.
func caddyWord(s string) string {
	if bareWord.MatchString(s) {
		return s
	}
	s = strings.NewReplacer("{$", `\{$:{$}`, "{", `\{`, "}", `\}`).Replace(s)
	if !strings.Contains(s, "`") {
		return "`" + s + "`"
	}
	mark := "ACCOUNT"
	for strings.Contains(s, mark) {
		mark += "_"
	}
	return "<<" + mark + "\n\t\t\t" + s + "\n\t\t\t" + mark
}

// firstRequest returns the first counted request of the account, nil if there is none. It has the user
// and the key only on the day of the request, and only for accounts with up to pageSize users.
func (q *request) firstRequest() (*firstRequest, error) {
	users, total, err := q.svc.Users(q.r.Context(), q.account(), core.UserFilter{}, core.Page{Number: 1, Size: pageSize})
	if err != nil {
		return nil, err
	}
	today := q.svc.Today()
	list, err := q.accountDays(today-core.DaysKept+1, today)
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(list, func(d core.DayTotals) bool { return d.Traffic != core.Traffic{} })
	if i < 0 {
		return nil, nil
	}
	f := &firstRequest{Day: list[i].Date}
	if f.Day == today && total <= len(users) {
		err = q.findFirstRequest(f, users)
	}
	return f, err
}

// findFirstRequest sets the entry, user and key of the oldest request of the users.
func (q *request) findFirstRequest(f *firstRequest, users []*core.User) error {
	for _, u := range users {
		e, err := q.oldest(u.ID)
		if err != nil {
			return err
		}
		if e != nil && (f.Entry == nil || e.At.Before(f.Entry.At)) {
			f.Entry, f.User = e, u
		}
	}
	if f.Entry == nil {
		return nil
	}
	var err error
	if f.Key, err = q.svc.Key(q.r.Context(), q.account(), f.Entry.KeyID); errors.Is(err, core.ErrKeyNotFound) {
		return nil
	}
	return err
}

// oldest returns the oldest request in the history of a user, nil for an empty history.
func (q *request) oldest(user int64) (*core.Entry, error) {
	p := onlyOne
	list, total, err := q.svc.UserHistory(q.r.Context(), q.account(), user, p)
	if err == nil && total > 1 {
		p.Number = total
		list, _, err = q.svc.UserHistory(q.r.Context(), q.account(), user, p)
	}
	if err != nil || len(list) == 0 {
		return nil, err
	}
	return &list[0], nil
}
