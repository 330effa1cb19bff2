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

// startView is what the quick start shows.
type startView struct {
	Make, Curl, JavaScript, Gateway snippet
	First                           *firstRequest
}

// snippet is a text to be copied.
type snippet struct{ ID, What, Text string }

// firstRequest is the first request of an account, as far as it is known.
type firstRequest struct {
	Day   core.Date
	Entry *core.Entry // nil when it is not known
	User  *core.User  // who made it
	Key   *core.Key   // nil when it was deleted
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
		Make:       snippet{"make", "Commands that make a plan, a user and a key", fmt.Sprintf(makeText, shellWord(api))},
		Curl:       snippet{"ask-curl", "A command that asks", fmt.Sprintf(curlText, shellWord(api+"/validate"))},
		JavaScript: snippet{"ask-javascript", "A function that asks", fmt.Sprintf(javaScriptText, javaScriptWord(api+"/validate"))},
		Gateway:    snippet{"gateway", "A site of the Caddyfile", fmt.Sprintf(gatewayText, caddyWord(q.who.Account.Name))},
		First:      first,
	})
}

// The snippets. Those for a shell build on each other, and have no comments: zsh takes none
// that are typed.
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
  grep -o 'lk_user_[A-Za-z0-9]*')
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

// javaScriptWord writes a text as a string of JavaScript: JSON is a part of it (ECMA-262
// section 12.9.4, since 2019).
func javaScriptWord(s string) string {
	b, _ := json.Marshal(s) // a string can be written
	return string(b)
}

// bareWord is what a Caddyfile takes as it stands.
var bareWord = regexp.MustCompile(`^[A-Za-z0-9._@-]+$`)

// caddyWord quotes the argument of an option for a Caddyfile, in which braces are those of
// placeholders. Backquotes take everything but themselves, and a heredoc takes those.
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

// firstRequest returns the first request that is counted, nil before there is one. Who made
// it is known on its day, while the account is small.
func (q *request) firstRequest() (*firstRequest, error) {
	users, total, err := q.svc.Users(q.r.Context(), q.account(), core.UserFilter{}, core.Page{Number: 1, Size: pageSize})
	if err != nil {
		return nil, err
	}
	today, days := q.svc.Today(), q.accountDays
	if total <= len(users) { // it costs little, and is to be seen at once
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

// findFirstRequest finds the first of all requests of some users.
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

// oldest returns the oldest request in the history of a user, nil when there is none.
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
