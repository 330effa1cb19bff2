package secrets_test

import (
	"maps"
	"regexp"
	"strings"
	"testing"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/secrets"
)

func TestNewSecrets(t *testing.T) {
	seen := map[string]bool{}
	for range 1000 {
		owner, user := secrets.NewOwnerSecret(), secrets.NewUserSecret(secrets.DefaultKeyPrefix)
		if len(owner) != 32 || !secrets.WellFormedOwnerSecret(owner) {
			t.Fatalf("owner's key %q, want lk_ and 29 letters or digits", owner)
		}
		if len(user) != 40 || !secrets.WellFormedUserSecret(user) {
			t.Fatalf("key %q, want lk_user_ and 32 letters or digits", user)
		}
		if seen[owner] || seen[user] {
			t.Fatal("a secret was made twice")
		}
		seen[owner], seen[user] = true, true
	}
}

func TestWellFormedUserSecret(t *testing.T) {
	tests := []struct {
		name, secret string
		want         bool
	}{
		{"as made", secrets.NewUserSecret(secrets.DefaultKeyPrefix), true},
		{"one character", "lk_user_a", true},
		{"every kind of character", "lk_user_aZ09_-=", true},
		{"256 characters", "lk_user_" + strings.Repeat("a", 248), true},
		{"257 characters", "lk_user_" + strings.Repeat("a", 249), false},
		{"empty", "", false},
		{"nothing after the prefix", "lk_user_", false},
		{"an owner's key", secrets.NewOwnerSecret(), false},
		{"prefix in capitals", "LK_USER_abc", false},
		{"space", "lk_user_a b", false},
		{"line feed", "lk_user_abc\n", false},
		{"NUL", "lk_user_abc\x00", false},
		{"not ASCII", "lk_user_é", false},
		{"dot", "lk_user_a.b", false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := secrets.WellFormedUserSecret(tt.secret); got != tt.want {
				t.Errorf("WellFormedUserSecret(%q) = %v, want %v", tt.secret, got, tt.want)
			}
		})
	}
}

func TestHintOf(t *testing.T) {
	for secret, want := range map[string]string{
		"lk_user_abcdefghijkl": "lk_user_…ijkl",
		"lk_abcdefghijklmnop":  "lk_…mnop",
		"lk_user_abcd":         "lk_user_…", // four characters would be the whole secret
		"acme_live_abcdefgh":   "acme_live_…efgh",
		"acme_test_abcdefgh":   "acme_…efgh",
		"other_abcdefgh":       "…efgh",
	} {
		if got := secrets.HintOf(secret, "acme_live_", "acme_"); got != want {
			t.Errorf("HintOf(%q) = %q, want %q", secret, got, want)
		}
	}
}

// No masked text contains a secret.
func FuzzMaskSecrets(f *testing.F) {
	f.Add("/v1/items?api_key=", "&x=1")
	f.Add("lk_", "lk_user_")
	f.Add("", "")
	f.Fuzz(func(t *testing.T, before, after string) {
		for _, secret := range []string{"lk_user_0123456789abcdefghijABCDEFGHIJ01", "lk_0123456789abcdefghijABCDEFGH0"} {
			if got := secrets.MaskSecrets(before + secret + after); strings.Contains(got, secret[8:]) {
				t.Errorf("MaskSecrets(%q) = %q", before+secret+after, got)
			}
		}
	})
}

// The pattern says which texts are masked. MaskSecrets finds the same texts without it, in a
// tenth of the time.
func FuzzMaskSecretsAtAGlance(f *testing.F) {
	for _, s := range []string{"lk_abcdefgh", "%6c%6B%5fabcdefgh", "%25256Clk_user_%255Fabcdef", "l%4b_abcdef%", "%2", "%25", "%l%kk_lk%5", "lK_%25aaaaaa%", "llk_aaaaaa%", "%256clk%5Faaaaaa", "%l\u212a_aaaaaa", "%lk_aaa\u017faa"} {
		f.Add(s)
	}
	pattern := regexp.MustCompile(`(?i)(?:l|%(?:25)*[46]c)(?:k|%(?:25)*[46]b)(?:_|%(?:25)*5f)(?:[a-z0-9_=-]|%(?:25)*(?:2d|3[0-9d]|[46][1-9a-f]|[57][0-9a]|5f)){6,}`)
	f.Fuzz(func(t *testing.T, s string) {
		want := s
		if strings.Contains(s, "lk_") || strings.Contains(s, "%") {
			want = pattern.ReplaceAllString(s, "lk_***")
		}
		if got := secrets.MaskSecrets(s); got != want {
			t.Errorf("MaskSecrets(%q) = %q, want %q", s, got, want)
		}
	})
}

// Promise 4: encoding a secret does not carry it into a log or the history.
func TestMaskSecretsEncoded(t *testing.T) {
	for _, s := range []string{
		"/x?api_key=%6c%6b_user%5F0123456789abcdef&y=1",
		"/x?api_key=%6C%6Buser%5f0123456789abcdef&y=1", // no underscore: not ours
		"/x?api_key=lk%5Fuser%5F0123456789abcdef&y=1",
		"/x?api_key=lk%255Fuser%255F0123456789abcdef&y=1",
		"/x?api_key=lk_user_%30%31%32%33%34%35%36789abcdef&y=1",
		"/x?api_key=lk_user_0123456789abcdef&y=1",
	} {
		want := "/x?api_key=lk_***&y=1"
		if strings.Contains(s, "%6Buser") {
			want = s
		}
		if got := secrets.MaskSecrets(s); got != want {
			t.Errorf("MaskSecrets(%q) = %q, want %q", s, got, want)
		}
	}
}

// Promise 4: ReplaceSecret finds a secret in each encoding, and changes nothing else.
func TestReplaceSecret(t *testing.T) {
	const secret = "lk_user_aZ09_-="
	for s, want := range map[string]string{
		"":                               "",
		"no copy, 100%":                  "no copy, 100%",
		"https://x/?k=lk_user_aZ09_-=&y": "https://x/?k=X&y",
		"lk_user_aZ09_-=lk_user_aZ09_-=": "XX",
		"lk_user_aZ09_-= and 5%, lk_user_aZ09_-=":   "X and 5%, X",
		"k=lk%5Fuser%5faZ09%5F-%3D&q=%20":           "k=X&q=%20",
		"%6ck%255fuser_aZ%30%3925%25255F%2d=%":      "%6ck%255fuser_aZ%30%3925%25255F%2d=%",
		"lk_lk_%6ck%255fuser_aZ%30%39%25255F%2d=%":  "lk_lk_X%",
		"LK_USER_AZ09_-= %":                         "LK_USER_AZ09_-= %",
		"lk_user_aZ09_- lk_user_bZ09_-= %":          "lk_user_aZ09_- lk_user_bZ09_-= %",
		"%25lk_user_aZ09_-=%25%6c%25%6clk_user_%61": "%25X%25%6c%25%6clk_user_%61",
	} {
		if got := secrets.ReplaceSecret(s, secret, "X"); got != want {
			t.Errorf("ReplaceSecret(%q) = %q, want %q", s, got, want)
		}
	}
}

// longTexts are texts of 64 KiB without a secret: plain letters, and texts that cost the search for secrets most.
var longTexts = map[string]string{
	"letters":         strings.Repeat("a", 64<<10),
	"underscores":     strings.Repeat("a_", 32<<10),
	"prefixes":        strings.Repeat("_"+strings.Repeat("a", 32), 64<<10/33),
	"letters, %":      strings.Repeat("a", 64<<10) + "%",
	"underscores, %":  strings.Repeat("a_", 32<<10) + "%",
	"owner prefix, %": strings.Repeat("lk_/", 16<<10) + "%",
}

// BenchmarkMaskSecrets measures the search for secrets in a text with percent-encoding, and in [longTexts].
func BenchmarkMaskSecrets(b *testing.B) {
	texts := maps.Clone(longTexts)
	texts["encoded"] = "/v1/search?q=all%20kinds%20of%20things&lang=en&order=%2Bname"
	for name, text := range texts {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				secrets.MaskSecrets(text)
			}
		})
	}
}

// The search for secrets allocates nothing for each candidate. A failure means that one request with a long text keeps a CPU busy.
func TestMaskSecretsAllocations(t *testing.T) {
	for name, text := range longTexts {
		if n := testing.AllocsPerRun(10, func() { secrets.MaskSecrets(text) }); n > 4 {
			t.Errorf("%s: %v allocations, want at most 4", name, n)
		}
	}
}

// A key with a prefix of an account is masked wherever it stands behind underscores and letters.
func TestMaskSecretsAnywhere(t *testing.T) {
	key := secrets.NewUserSecret("acme_live_")
	for name, text := range longTexts {
		for n := range 100 {
			s := text[:n] + "/" + key + "_" + text[:n]
			if got := secrets.MaskSecrets(s); strings.Contains(got, key[len("acme_live_"):]) {
				t.Errorf("%s, at %d: MaskSecrets(%q) = %q", name, n, s, got)
			}
		}
	}
}

// BenchmarkSanitize measures what the history does with the endpoint of a request: a plain text, as nearly every
// endpoint is, and a text with percent-encoding.
func BenchmarkSanitize(b *testing.B) {
	for name, text := range map[string]string{
		"plain":   "/v1/customers/by_region/eu_west_1/orders/2025/november/line_items",
		"encoded": "/v1/search?q=all%20kinds%20of%20things&lang=en&order=%2Bname",
	} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				secrets.Sanitize(text, core.MaxEntryEndpoint)
			}
		})
	}
}

func FuzzWellFormedUserSecret(f *testing.F) {
	f.Add("lk_user_abc")
	f.Add("lk_user_")
	f.Fuzz(func(t *testing.T, s string) {
		rest, prefixed := strings.CutPrefix(s, "lk_user_")
		want := prefixed && rest != "" && len(s) <= 256 &&
			strings.Trim(rest, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-=") == ""
		if got := secrets.WellFormedUserSecret(s); got != want {
			t.Errorf("WellFormedUserSecret(%q) = %v, want %v", s, got, want)
		}
		if secrets.WellFormedUserSecret(s) && strings.Contains(secrets.HintOf(s), s) {
			t.Errorf("HintOf(%q) shows all of it", s)
		}
	})
}

func TestDigestText(t *testing.T) {
	d := secrets.DigestOf("lk_user_abc")
	text, _ := d.MarshalText()
	var back secrets.Digest
	if err := back.UnmarshalText(text); err != nil || back != d {
		t.Errorf("%s reads back as %x, %v", text, back, err)
	}
	for _, bad := range []string{"", "00", strings.Repeat("g", 64), strings.Repeat("0", 66)} {
		if err := back.UnmarshalText([]byte(bad)); err == nil {
			t.Errorf("UnmarshalText(%q) succeeds, want an error", bad)
		}
	}
}
