package adminapi

import (
	"reflect"
	"testing"

	"github.com/limitkeeper/limitkeeper/core"
)

// slowly decodes a request with parseObject, as after parseFast returns false.
func slowly(body string) (core.Request, error) {
	return decodeBody(&call{validation: true}, []byte(body), readRequest)
}

// parseFast accepts the usual bodies.
func TestParseFast(t *testing.T) {
	all := core.Request{Secret: "lk_user_a", Endpoint: "/v1/items?a=b", Method: "GET", IP: "203.0.113.7", Cost: 5, RequestID: "id-1"}
	least := core.Request{Secret: "lk_user_a", Endpoint: "/", Method: "GET", Cost: 1}
	for body, want := range map[string]core.Request{
		`{"api_key":"lk_user_a","endpoint":"/","method":"GET"}`:                                                                     least,
		" {\r\n\t\"api_key\" : \"lk_user_a\" ,\n\"endpoint\":\"/\", \"method\":\"GET\" } \n":                                        least,
		`{"method":"GET","endpoint":"/","api_key":"lk_user_a"}`:                                                                     least,
		`{"api_key":"lk_user_a","endpoint":"/v1/items?a=b","method":"GET","ip_address":"203.0.113.7","cost":5,"request_id":"id-1"}`: all,
	} {
		if got, ok := parseFast(body); !ok || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: got %+v, %t, want %+v", body, got, ok, want)
		}
	}
}

// parseFast and parseObject agree: a body that parseFast accepts decodes to the same request with parseObject,
// and parseFast accepts no invalid body.
func FuzzParseFast(f *testing.F) {
	for _, body := range []string{
		`{"api_key":"lk_user_a","endpoint":"/v1/items?a=b","method":"GET","ip_address":"203.0.113.7","cost":5,"request_id":"id-1"}`,
		` { "api_key" : "a" } `, `{}`, `{"api_key":"a",}`, `{"api_key":"a"`, `{"api_key":"a"}}`, `{"api_key":"a"}x`, `{,}`, `{"a":1,"a":2}`,
		`{"api_key":"a","api_key":"b"}`, `{"api_key":null}`, `{"api_key":1}`, `{"cost":"1"}`, `{"cost":01}`, `{"cost":0}`, `{"cost":1.5}`, `{"cost":1e3}`,
		`{"cost":-1}`, `{"cost":1000001}`, `{"cost":99999999999999999999}`, `{"request_id":""}`, `{"request_id":"lk_user_abcdefghijkl"}`, `{"x":true}`, `{"x":{}}`,
		`{"x":[1]}`, `{"api_key":"\u0061"}`, `{"api_key":"ä"}`, "{\"api_key\":\"a\nb\"}", "{\"api_key\":\"\x7f\"}", `{"a":1,"b":1,"c":1,"d":1,"e":1,"f":1,"g":1,"h":1,"i":1,"j":1,"k":1,"l":1,"m":1,"n":1,"o":1}`,
		`{"api_key" "a"}`, `{"api_key":"a" "b":1}`, `{"":"a"}`, `{"a":"0 }`, `{"cost":1 2}`, `{"cost":}`, `[`, ``, `""`, "{\"a\":\"b\"\x00}", "{\u00a0}",
	} {
		f.Add(body)
	}
	f.Fuzz(func(t *testing.T, body string) {
		got, ok := parseFast(body)
		if !ok {
			return
		}
		if want, err := slowly(body); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%q: at a glance %+v, slowly %+v, %v", body, got, want, err)
		}
	})
}
