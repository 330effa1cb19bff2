package dashboard

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"

	"github.com/limitkeeper/limitkeeper/core"
)

// startView is the data of the quick start.
type startView struct {
	Make, Curl, JavaScript, Gateway snippet
	First                           *firstRequest
}

// snippet is a text to copy.
type snippet struct{ ID, What, Text string }

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
	api := q.origin() + "/functions/v1"
	return q.render(http.StatusOK, "start", "Quick start", startView{
		Make:       snippet{"make", "Commands that create a plan, a user and a key", fmt.Sprintf(makeText, shellWord(api), q.signedIn.Account.PrefixOfNewKeys())},
		Curl:       snippet{"ask-curl", "A command that validates a key", fmt.Sprintf(curlText, shellWord(api+"/validate"))},
		JavaScript: snippet{"ask-javascript", "A function that validates a key", fmt.Sprintf(javaScriptText, javaScriptWord(api+"/validate"))},
		Gateway:    snippet{"gateway", "A site for the Caddyfile", fmt.Sprintf(gatewayText, caddyWord(q.signedIn.Account.Name))},
		First:      first,
	})
}

// The snippets. Each shell snippet uses variables of the previous one. They have no comments, because
// an interactive zsh accepts none.
const (
	makeText = `export OWNER_KEY='lk_…'
API=%s

post() {
  curl -sS "$API/$1" -d "$2" -w '\n' -H 'Content-Type: application/json' \
    -H "Authorization: Bearer $OWNER_KEY" | tee /dev/stderr
}

PLAN=$(post plans '{"name":"Starter","max_requests":1000,"request_period":"month"}' |
  grep -o 'plan_[A-Za-z0-9]*')
CUSTOMER=$(post users '{"name":"First customer","plan_id":"'$PLAN'"}' |
  grep -o '"user_id":[0-9]*' | cut -d: -f2)
KEY=$(post users/$CUSTOMER/keys '{"name":"Production"}' |
  grep -o '%s[A-Za-z0-9]*')
echo "The customer's key: $KEY"
`

	curlText = `curl -sS %s \
  -H "Authorization: Bearer $OWNER_KEY" \
  -H 'Content-Type: application/json' \
  -d '{"api_key":"'$KEY'","endpoint":"/v1/orders","method":"GET"}'
`

	javaScriptText = `// Asks whether a request of a customer is allowed, and counts it.
async function validate(apiKey, endpoint, method) {
  const answer = await fetch(%s, {
    method: "POST",
    headers: {
      "Authorization": "Bearer " + process.env.OWNER_KEY,
      "Content-Type": "application/json",
    },
    body: JSON.stringify({ api_key: apiKey, endpoint, method }),
  });
  if (!answer.ok) throw new Error("Limitkeeper answered " + answer.status);
  return answer.json(); // { success: true, details: { remaining: 999, … } }
}
`

	gatewayText = `gateway.example.com {
	limitkeeper {
		account %s
	}
	reverse_proxy 127.0.0.1:9000
}
`
)

// shellWord quotes a text for a POSIX shell.
func shellWord(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// javaScriptWord returns a JavaScript string literal. JSON strings are valid literals since
// ECMAScript 2019 (ECMA-262 section 12.9.4).
func javaScriptWord(s string) string {
	b, _ := json.Marshal(s) // a string can be marshalled
	return string(b)
}

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
	today, days := q.svc.Today(), q.accountDays
	if total <= len(users) { // cheap for a small account, so not cached
		days = func(first, last core.Date) ([]core.DayTotals, error) {
			return q.svc.AccountDays(q.r.Context(), q.account(), first, last)
		}
	}
	list, err := days(today-core.DaysKept+1, today)
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
	p := core.Page{Number: 1, Size: 1}
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
