package adminapi

import (
	"cmp"
	"fmt"
	"math"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/service"
)

// maxLengths are the maximum lengths of parameters in bytes, 254 for all others.
var maxLengths = map[string]int{"external_id": 255 * utf8.UTFMax, "q": service.MaxSearchText} // an external id has 255 characters

// query holds the query parameters. Each method returns one parameter and records the first error.
type query struct {
	values url.Values
	err    error
}

func (c *call) query() *query { return &query{values: c.values} }

// parseQuery parses the query. The error names the first parameter that is unknown, given twice, empty, or no short UTF-8. An empty value
// would select everything.
func (c *call) parseQuery(known []string) (err error) {
	text := c.r.URL.RawQuery
	if text == "" {
		return nil
	}
	fault := c.faultFunc()
	if c.values, err = url.ParseQuery(text); err != nil {
		return fault("query", "Query is not well-formed")
	}
	for pair := range strings.SplitSeq(text, "&") {
		escaped, _, _ := strings.Cut(pair, "=")
		name, _ := url.QueryUnescape(escaped) // the query is well-formed
		most := cmp.Or(maxLengths[name], 254)
		switch value := c.values.Get(name); {
		case pair == "":
		case !slices.Contains(known, name):
			return fault(fieldName(name), "Unknown parameter")
		case len(c.values[name]) > 1:
			return fault(name, "Must not be given twice")
		case value == "":
			return fault(name, "Must not be empty")
		case len(value) > most || !utf8.ValidString(value):
			return fault(name, fmt.Sprintf("Must be valid UTF-8 of at most %d bytes", most))
		}
	}
	return nil
}

func (q *query) wrong(name, detail string) {
	if q.err == nil {
		q.err = core.Invalid(name, detail)
	}
}

// page returns the requested page. A limit above the maximum becomes the maximum.
func (q *query) page() core.Page {
	return core.Page{
		Number: int(q.whole("page", 1)),
		Size:   int(min(q.whole("limit", service.DefaultPageSize), service.MaxPageSize)),
	}
}

// text returns a parameter, "" if it is missing.
func (q *query) text(name string) string { return q.values.Get(name) }

// id returns a parameter that is the id of a plan or key, "" if it is missing.
func (q *query) id(name, of string) string {
	text := q.text(name)
	if text != "" && !isID(text) {
		q.wrong(name, "Must be the id of a "+of)
	}
	return text
}

// whole returns a whole number of 1 or more, or missing if the parameter is missing. A number above
// int64 becomes the largest int64.
func (q *query) whole(name string, missing int64) int64 {
	text := q.text(name)
	if text == "" {
		return missing
	}
	if strings.Trim(text, "0123456789") != "" || strings.Trim(text, "0") == "" {
		q.wrong(name, "Must be a whole number of 1 or more")
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return math.MaxInt64
	}
	return n
}

// time returns a parameter that is a time, or the beginning of a day in UTC.
func (q *query) time(name string) (t time.Time) {
	text := q.text(name)
	if text == "" {
		return t
	}
	t, err := time.Parse(time.RFC3339, text)
	if err != nil {
		t, err = time.Parse(time.DateOnly, text)
	}
	if err != nil {
		q.wrong(name, "Must be a time as in RFC 3339, or a date, such as 2030-01-31T00:00:00Z or 2030-01-31")
	}
	return t.UTC()
}

// oneOf returns a parameter that must be one of the words, "" if it is missing.
func (q *query) oneOf(name string, words ...string) string {
	text := q.text(name)
	if text != "" && !slices.Contains(words, text) {
		q.wrong(name, "Must be one of "+strings.Join(words, ", "))
	}
	return text
}

func (q *query) keyFilter() core.KeyFilter {
	return core.KeyFilter{
		UserID: q.whole("user_id", 0),
		PlanID: orNull(q.id("plan_id", "plan")),
		Status: core.KeyStatus(q.oneOf("status", string(core.KeyActive), string(core.KeyInactive))),
	}
}
