package apply_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/limitkeeper/limitkeeper/apply"
	"github.com/limitkeeper/limitkeeper/core"
)

// A file creates, changes and with prune deletes webhooks, which their URLs identify. A second run changes nothing, and secrets are shown once.
func TestWebhooks(t *testing.T) {
	eachStore(t, func(b *bench) {
		const file = `
account: acme
webhooks:
  - url: https://example.com/a?b=c
    events: [limitkeeper.threshold, limitkeeper.exhausted]
    description: Sales
  - url: https://example.com/all
`
		b.apply(file, apply.Options{DryRun: true}, `+ webhook "https://example.com/a?b=c"`, `+ webhook "https://example.com/all"`)
		f, err := apply.Parse([]byte(file))
		if err != nil {
			b.Fatal(err)
		}
		r, err := apply.Run(t.Context(), b.svc, f, apply.Options{})
		if err != nil || len(r.Accounts[0].Webhooks) != 2 || !strings.HasPrefix(r.Accounts[0].Webhooks[1].Secret, "whsec_") {
			b.Fatalf("got %+v, %v, want two webhooks with secrets", r, err)
		}
		b.apply(file, apply.Options{})
		b.apply(file, apply.Options{Prune: true})
		b.apply("account: acme\nplans: []\n", apply.Options{Prune: true})
		hooks := func() []*core.Webhook {
			list, _, err := b.svc.Webhooks(t.Context(), b.account, core.Page{Number: 1, Size: 100})
			if err != nil {
				b.Fatal(err)
			}
			return list
		}
		before := hooks()
		if len(before) != 2 || fmt.Sprint(before[0].Events) != "[limitkeeper.exhausted limitkeeper.threshold]" || string(before[0].Secrets[0].Value) != r.Accounts[0].Webhooks[0].Secret {
			b.Errorf("got %+v", before)
		}
		b.apply("account: acme\nwebhooks: [{url: https://example.com/all, is_active: false}]\n", apply.Options{Prune: true},
			`- webhook "https://example.com/a?b=c"`, `~ webhook "https://example.com/all": is_active true → false`)
		if after := hooks(); len(after) != 1 || after[0].ID != before[1].ID || !after[0].Inactive {
			b.Errorf("got %+v", after)
		}
		b.refuse(`account: acme
webhooks:
  - {url: https://example.com/all}
  - {url: https://example.com/all}
  - {url: ftp://example.com/}
  - {url: https://example.com/b, events: [limitkeeper.treshold]}
  - {url: https://example.com/c, secret: whsec_AAAA}
  - {description: none}
`, apply.Options{},
			`line 4: webhooks[1].url: Two of the webhooks have the url "https://example.com/all": the other is in line 3`,
			`line 5: webhooks[2].url: URL must begin with https:// or http:// and a host`,
			`line 6: webhooks[3].events: Events must be some of `+strings.Join(core.EventTypes(), ", "),
			`line 7: webhooks[4].secret: Unknown member`,
			`line 8: webhooks[5].url: URL is required`)
		b.refuse("account: acme\nwebhooks: [{url: 'http://127.0.0.1/'}]\n", apply.Options{},
			`line 2: webhooks[0].url: URL must have a public address: the server sends nothing to private and loopback addresses, unless its configuration has webhook_allow_private`)
	})
}
