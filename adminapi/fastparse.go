package adminapi

import (
	"slices"
	"strings"

	"github.com/limitkeeper/limitkeeper/core"
)

// fastParser parses the usual validation request: an object of ASCII strings without escapes and of
// small whole numbers. It rejects all other bodies, valid or not, and the caller then uses
// parseObject, which takes five times as long. A fuzz test checks that both parsers agree.
type fastParser struct {
	text string
	at   int
}

// parseFast parses a validation request. ok is false if the caller must use parseObject.
func parseFast(body string) (q core.Request, ok bool) {
	q.Cost = 1
	f := fastParser{text: body}
	var seen [6]string // one for each known member
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
	if q.RequestID == "" {
		return q, true
	}
	var err error
	q.RequestID, err = core.ParseRequestID(q.RequestID)
	return q, err == nil
}

// member parses the value of a member. It returns false for an unknown member.
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

// next skips space and then c. It returns false if c is not the next character.
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

// ends reports whether only space is left.
func (f *fastParser) ends() bool {
	f.space()
	return f.at == len(f.text)
}

// string parses a string.
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

// number parses up to 15 digits. A fraction or an exponent after them makes the next token invalid.
func (f *fastParser) number() (n int64, ok bool) {
	f.space()
	from := f.at
	for ; f.at < len(f.text) && '0' <= f.text[f.at] && f.text[f.at] <= '9'; f.at++ {
		n = 10*n + int64(f.text[f.at]-'0')
	}
	digits := f.at - from
	return n, digits == 1 || 1 < digits && digits < 16 && f.text[from] != '0'
}
