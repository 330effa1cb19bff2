package dashboard

import (
	"encoding/json"
	"net/http"
	"regexp"
	"slices"
	"strings"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/service"
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

// firstRequest returns the first counted request of the account, nil if there is none. It has the entry, the user
// and the key only on the day of the request.
func (q *request) firstRequest() (*firstRequest, error) {
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
	if f.Day < today {
		return f, nil
	}
	h, err := q.svc.AccountHistory(q.r.Context(), q.account(), service.HistoryFilter{}, core.Page{Number: 1, Size: service.MaxFound})
	if err != nil || !h.Complete || len(h.Entries) == 0 {
		return f, err
	}
	oldest := slices.MinFunc(h.Entries, func(a, b core.Entry) int { return a.At.Compare(b.At) })
	if f.User, err = nilIfMissing(q.svc.User(q.r.Context(), q.account(), oldest.UserID)); err != nil || f.User == nil {
		return f, err
	}
	f.Entry = &oldest
	f.Key, err = nilIfMissing(q.svc.Key(q.r.Context(), q.account(), oldest.KeyID))
	return f, err
}
