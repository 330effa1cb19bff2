package apply_test

import (
	"encoding/json"
	"testing"

	"github.com/limitkeeper/limitkeeper/apply"
)

// A line of a dry run shows each difference, also at the end of a long value. Otherwise a reviewer cannot see what changes.
func TestChangeShowsDifference(t *testing.T) {
	const search, list, reports = `{"endpoint":"/v1/search*","costs":{"requests":10}}`, `{"endpoint":"/v1/list*","costs":{"requests":1}}`, `{"endpoint":"/v1/reports*","costs":{"reports":1}}`
	for name, tt := range map[string]struct{ before, after, want string }{
		"short":            {`["a","b"]`, `["a","c"]`, `["a","b"] → ["a","c"]`},
		"last of a list":   {"[" + search + "," + list + "]", "[" + search + `,{"endpoint":"/v1/list*","costs":{"requests":2}}]`, `[…,` + list + `] → […,{"endpoint":"/v1/list*","costs":{"requests":2}}]`},
		"new in a list":    {"[" + search + "," + list + "]", "[" + search + "," + reports + "," + list + "]", `[…] → […,` + reports + `,…]`},
		"order of a list":  {"[" + search + "," + list + "," + reports + "]", "[" + reports + "," + list + "," + search + "]", "[" + search + ",…," + reports + "] → [" + reports + ",…," + search + "]"},
		"one of a list":    {"[" + search + "," + search + "]", "[" + search + "]", "[…," + search + "] → […]"},
		"list and null":    {"[" + search + "," + list + "]", "null", "[" + search + "," + list + "] → null"},
		"list and nothing": {"[" + search + "," + list + "]", "[]", "[" + search + "," + list + "] → []"},
		"object":           {`{"` + long + `":1,"tier":"<a>","b":1}`, `{"` + long + `":1,"tier":"b"}`, `{"b":1,"tier":"<a>",…} → {"tier":"b",…}`},
		"string":           {`"` + long + `"`, `"` + long + `b"`, `"` + long + `" → "` + long + `b"`},
	} {
		c := apply.Change{Action: "update", Kind: "plan", Name: "p", Members: []apply.Member{{Name: "m", Before: json.RawMessage(tt.before), After: json.RawMessage(tt.after)}}}
		if got, want := c.String(), `~ plan "p": m `+tt.want; got != want {
			t.Errorf("%s: got  %s\nwant %s", name, got, want)
		}
	}
}

const long = "a text of more than sixty characters, which a line once did not show to its end"
