package adminapi_test

import (
	"encoding/base64"
	"fmt"
	"testing"

	"github.com/limitkeeper/limitkeeper/core"
)

// A list of requests goes on behind the cursor of an answer, and the last answer has none.
func TestRequestsCursor(t *testing.T) {
	a := newAPI(t)
	_, secret := a.key(a.user("u"), a.plan(100))
	for i := range 5 {
		a.do("POST", prefix+"/validate", fmt.Sprintf(`{"api_key":%q,"endpoint":"/%d","method":"GET"}`, secret, i)).want(200)
		if i%2 == 0 {
			a.clock.Pass(1e9)
		}
	}
	got, path := "", prefix+"/requests?limit=2"
	for range 3 {
		data := a.do("GET", path, nil).want(200).data()
		for _, r := range data["requests"].([]any) {
			got += r.(map[string]any)["endpoint"].(string)
		}
		a.validate(secret) // a busy history
		cursor, more := data["cursor"]
		if !more {
			path = ""
			break
		}
		path = prefix + "/requests?limit=2&cursor=" + cursor.(string)
	}
	if got != "/4/3/2/1/0" || path != "" {
		t.Errorf("got the requests %s, and then %q; want each once, and no cursor at the end", got, path)
	}
	cursor := a.do("GET", prefix+"/requests?limit=2", nil).want(200).data()["cursor"].(string)
	a.bad("GET", prefix+"/requests?page=2&cursor="+cursor, nil).wantField(core.CodeValidation, "page")
	for _, wrong := range []string{"x", "", cursor + "A"} {
		a.bad("GET", prefix+"/requests?cursor="+wrong, nil).wantField(core.CodeValidation, "cursor")
	}
	wellFormed := base64.RawURLEncoding.EncodeToString([]byte("1 2 3"))
	a.do("GET", prefix+"/requests?cursor="+wellFormed, nil).want(200)
}
