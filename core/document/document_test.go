package document

import (
	"encoding/json"
	"errors"
	"math"
	"reflect"
	"strings"
	"testing"
)

func TestWhole(t *testing.T) {
	for text, want := range map[string]int64{
		"0": 0, "-0": 0, "0.0": 0, "0e999999999999": 0, "5": 5, "-5": -5, "5.0": 5, "5.000e0": 5,
		"1e3": 1000, "1E+3": 1000, "1.5e1": 15, "1500e-2": 15, "0.0015e4": 15, "100": 100,
		"9007199254740993": 1<<53 + 1, "9223372036854775807": math.MaxInt64, "-9223372036854775807": -math.MaxInt64,
		"9223372036854775808": math.MaxInt64, "1e19": math.MaxInt64, "1e999999999": math.MaxInt64, "1e99999999999999999999": math.MaxInt64,
		"-1e400": -math.MaxInt64, "92233720368547758070e-1": math.MaxInt64, "-9223372036854775808": -math.MaxInt64,
	} {
		if got, ok := Whole(&Value{Kind: '0', Text: text}); !ok || got != want {
			t.Errorf("%s: got %d, %v, want %d", text, got, ok, want)
		}
	}
	for _, text := range []string{"1.5", "0.1", "-0.1", "1e-1", "15e-1", "1e-999999999", "1e-99999999999999999999", "", "-", "!", "0x1F", "1_000", "Infinity"} {
		if got, ok := Whole(&Value{Kind: '0', Text: text}); ok {
			t.Errorf("%s: got %d, want none", text, got)
		}
	}
	if got, ok := Whole(&Value{Kind: '"', Text: "5"}); ok {
		t.Errorf("a string: got %d, want none", got)
	}
}

// Values, members and their names have the lines of the text.
func TestLines(t *testing.T) {
	var v Value
	if err := v.ParseJSON([]byte("\n{\"a\":\n 1,\n\"b\": [\n{}, \"x\\n\",\n true]}"), 3); err != nil {
		t.Fatal(err)
	}
	if err := new(Value).ParseJSON([]byte(`{"a":["[[[[","{{{{"]}`), 3); err != nil {
		t.Errorf("brackets in strings: %v", err)
	}
	a, b := v.Members[0], v.Members[1]
	b.Open()
	got := []int{v.Line, a.Line, a.Value.Line, b.Line, b.Value.Line, b.Items[0].Line, b.Items[1].Line, b.Items[2].Line}
	if want := []int{2, 2, 3, 4, 4, 5, 5, 6}; !reflect.DeepEqual(got, want) {
		t.Errorf("lines: got %v, want %v", got, want)
	}
}

func TestFaults(t *testing.T) {
	for text, want := range map[string]SyntaxError{
		"{\"a\":1,\n\"a\":2}":              {2, "/a", "Must not be given twice"},
		`{"a":[{"b":1,"\u0062":2}]}`:       {1, "/a/0/b", "Must not be given twice"},
		`{"a":"\ud800"}`:                   {1, "", "Must not escape half a surrogate pair"},
		"\"\xff\"":                         {1, "", "Must be valid UTF-8"},
		`{"b":1,"a":[[[]]]}`:               {1, "/a", "Must not be nested that deeply"},
		`[[[[]]]]`:                         {1, "", "Must not be nested that deeply"},
		"{}\n{}":                           {2, "", "Must be valid JSON"},
		`{"a":01}`:                         {1, "", "Must be valid JSON"},
		`{"a":1`:                           {1, "", "Must be valid JSON"},
		``:                                 {1, "", "Must be valid JSON"},
		strings.Repeat("[", 100_000) + "]": {1, "", "Must be valid JSON"},
	} {
		err := new(Value).ParseJSON([]byte(text), 3)
		if got, ok := errors.AsType[*SyntaxError](err); !ok || *got != want {
			t.Errorf("%.40s: got %+v, want %+v", text, got, want)
		}
	}
}

// ParseJSON and encoding/json read the same values. ParseJSON also refuses a member that is there twice, half a surrogate pair, and deep nesting.
func FuzzParseJSON(f *testing.F) {
	for _, text := range []string{`{"api_key":"lk_user_a","cost":5,"x":[1.50,-2e3,true,false,null,{"\u00e9\\":"\ud83d\ude00"}]}`, ` "a" `, `[]`, `{}`, `0`, `{"a":1,}`, `nul`, "\x00", `{"":""}`} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		const depth = 5
		var v Value
		if err := v.ParseJSON([]byte(text), depth); err != nil {
			if fault := err.(*SyntaxError); fault.Text == "Must be valid JSON" && json.Valid([]byte(text)) {
				t.Errorf("%q is valid", text)
			}
			return
		}
		again := func(text []byte) (v any) {
			dec := json.NewDecoder(strings.NewReader(string(text)))
			dec.UseNumber()
			if err := dec.Decode(&v); err != nil {
				t.Fatalf("%q: %v", text, err)
			}
			return v
		}
		if !json.Valid([]byte(text)) {
			t.Fatalf("%q is not valid", text)
		}
		v.forget()
		out, ok := v.JSON()
		if !ok || !reflect.DeepEqual(again(out), again([]byte(text))) {
			t.Errorf("%q: got %q, %v", text, out, ok)
		}
	})
}

// forget removes the texts of objects and arrays, so that JSON encodes them.
func (v *Value) forget() {
	v.Open()
	if v.Kind == '{' || v.Kind == '[' {
		v.Text = ""
	}
	for i := range v.Members {
		v.Members[i].forget()
	}
	for i := range v.Items {
		v.Items[i].forget()
	}
}
