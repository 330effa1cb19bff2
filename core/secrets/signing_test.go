package secrets_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/limitkeeper/limitkeeper/core/secrets"
)

// A signing secret is random, has the form of Standard Webhooks, and appears in no text that is printed or masked.
func TestSigningSecret(t *testing.T) {
	s, other := secrets.NewSigningSecret(), secrets.NewSigningSecret()
	if s == other || !s.WellFormed() || !other.WellFormed() {
		t.Errorf("got %s and %s, want two different secrets", string(s), string(other))
	}
	random := strings.TrimPrefix(string(s), secrets.SigningPrefix)
	for _, text := range []string{fmt.Sprint(s), fmt.Sprintf("%v %+v %#v %s %q", s, struct{ S secrets.SigningSecret }{s}, s, s, s),
		secrets.MaskSecrets("a " + string(s) + " b"), secrets.MaskSecrets("?q=%20whsec%5F" + random), secrets.MaskSecrets(`{"secret":"` + string(s) + `"}`)} {
		if strings.Contains(text, random[:8]) || !strings.Contains(text, secrets.SigningPrefix+"***") {
			t.Errorf("got %q, want the mask", text)
		}
	}
	for _, wrong := range []secrets.SigningSecret{"", "whsec_", "whsec_AAAA", s[1:], s + "=", "whsec_" + secrets.SigningSecret(strings.Repeat("AAAA", 22))} {
		if wrong.WellFormed() {
			t.Errorf("%s is well-formed", string(wrong))
		}
	}
}
