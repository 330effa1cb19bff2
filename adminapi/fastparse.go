package adminapi

import (
	"slices"
	"strings"

	"github.com/limitkeeper/limitkeeper/core"
)

// fastParser reads what nearly every client sends: an object of strings in ASCII without
// escapes, and of small whole numbers. It gives up on everything else, right or wrong,
// and leaves it to parseObject, which takes five times as long. What both take, they
// take for the same: a test holds them to it.
type fastParser struct {
	text string
	at   int
}

// parseFast reads a validation request, unless it is one to give up on.
func parseFast(body string) (q core.Request, ok bool) {
	q.Cost = 1
	f := fastParser{text: body}
	var seen [6]string // one for each member that is known
	names := seen[:0]
	for more := f.next('{'); more; more = f.next(',') {
		name, ok := f.string()
		if !ok || !f.next(':') || slices.Contains(names, name) || len(names) == cap(names) {
			return q, false
		}
		names = append(names, name)
		if !f.member(&q, name) {
			return q, false
		}
	}
	if !f.next('}') || len(names) == 0 || !f.ends() {
		return q, false
	}
	return q, q.RequestID == "" || core.CheckRequestID(q.RequestID) == nil
}

// member reads the value of a member, and gives up on an unknown one.
func (f *fastParser) member(q *core.Request, name string) (ok bool) {
	switch name {
	case "api_key":
		q.Secret, ok = f.string()
	case "endpoint":
		q.Endpoint, ok = f.string()
	case "method":
		q.Method, ok = f.string()
	case "ip_address":
		q.IP, ok = f.string()
	case "cost":
		q.Cost, ok = f.number()
	case "request_id":
		q.RequestID, ok = f.string()
		ok = ok && q.RequestID != ""
	}
	return ok
}

// next steps over a character, and the space before it, if that is what comes.
func (f *fastParser) next(c byte) bool {
	f.space()
	if f.at == len(f.text) || f.text[f.at] != c {
		return false
	}
	f.at++
	return true
}

func (f *fastParser) space() {
	for f.at < len(f.text) && strings.IndexByte(" \t\r\n", f.text[f.at]) >= 0 {
		f.at++
	}
}

// ends reports whether nothing but space comes.
func (f *fastParser) ends() bool {
	f.space()
	return f.at == len(f.text)
}

// string reads a string.
func (f *fastParser) string() (string, bool) {
	if !f.next('"') {
		return "", false
	}
	for i := f.at; i < len(f.text); i++ {
		switch c := f.text[i]; {
		case c == '"':
			s := f.text[f.at:i]
			f.at = i + 1
			return s, true
		case c < ' ' || c > '~' || c == '\\':
			return "", false
		}
	}
	return "", false
}

// number reads digits. What they belong to, if they are not all of a number, is not
// what may come next.
func (f *fastParser) number() (n int64, ok bool) {
	f.space()
	from := f.at
	for ; f.at < len(f.text) && '0' <= f.text[f.at] && f.text[f.at] <= '9'; f.at++ {
		n = 10*n + int64(f.text[f.at]-'0')
	}
	digits := f.at - from
	return n, digits == 1 || 1 < digits && digits < 16 && f.text[from] != '0'
}
