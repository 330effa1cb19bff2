package command

import (
	"cmp"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"

	"github.com/limitkeeper/limitkeeper/caddymodule/caddytest"
	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/secrets"
)

// auditDay is a day on which an account is changed in every way.
type auditDay struct {
	*server
	t       *testing.T
	secrets map[string]string // every secret of the day, by a description
	want    []string          // the entries of the account acme, in their order: actor, action and target
}

// step notes the entries that the next change leaves.
func (d *auditDay) step(who string, entries ...string) {
	for _, e := range entries {
		d.want = append(d.want, who+" "+e)
	}
}

// run runs a command, and adds the secrets that it prints.
func (d *auditDay) run(name string, args ...string) string {
	d.t.Helper()
	build := map[string]func(*cobra.Command){"account": accountCommand, "apply": applyCommand, "import": importCommand, "usage": usageCommand}[name]
	out, err := execute(name, build, append(args, "--address", d.Admin)...)
	if err != nil {
		d.t.Fatalf("%s %v: %v", name, args, err)
	}
	for _, s := range regexp.MustCompile(`lk_[0-9A-Za-z]{29}\b|lk_link_\S+`).FindAllString(out, -1) {
		d.secret("printed by "+name, s)
	}
	return out
}

func (d *auditDay) secret(what, value string) {
	d.secrets[fmt.Sprint(what, " ", len(d.secrets))] = value
}

// call sends a request with an owner's key, and returns the member data of the answer.
func (d *auditDay) call(owner, method, path, body string) map[string]any {
	d.t.Helper()
	r := d.Send(method, "/functions/v1"+path, body, "Authorization: Bearer "+owner, "X-Forwarded-Proto: https", "X-Forwarded-For: 192.0.2.7")
	if r.StatusCode >= 300 {
		d.t.Fatalf("%s %s: got %d %s", method, path, r.StatusCode, r.Text)
	}
	var answer struct{ Data map[string]any }
	if err := json.Unmarshal([]byte(r.Text), &answer); err != nil && method != "DELETE" {
		d.t.Fatalf("%s %s: %v: %s", method, path, err, r.Text)
	}
	if value, ok := answer.Data["api_key"].(string); ok {
		d.secret("value of a key", value)
	}
	return answer.Data
}

// page returns a page of the dashboard.
func (d *auditDay) page(cookie, path string) string {
	d.t.Helper()
	r := d.Get("/dashboard/"+path, "X-Forwarded-Proto: https", "X-Forwarded-For: 192.0.2.8", "Cookie: "+cookie)
	if r.StatusCode != 200 {
		d.t.Fatalf("%s: got %d\n%s", path, r.StatusCode, r.Text)
	}
	return r.Text
}

// post sends a form of a page of the dashboard.
func (d *auditDay) post(cookie, page, action string, form url.Values) string {
	d.t.Helper()
	r := d.send(cookie, page, action, form)
	if r.StatusCode != 303 && r.StatusCode != 200 {
		d.t.Fatalf("%s: got %d\n%s", action, r.StatusCode, r.Text)
	}
	return r.Text
}

// refuse sends a form that the role of a person does not allow.
func (d *auditDay) refuse(cookie, page, action string, form url.Values) {
	d.t.Helper()
	if r := d.send(cookie, page, action, form); r.StatusCode != 403 {
		d.t.Errorf("%s: got %d, want it refused\n%s", action, r.StatusCode, r.Text)
	}
}

func (d *auditDay) send(cookie, page, action string, form url.Values) caddytest.Reply {
	d.t.Helper()
	headers := []string{"X-Forwarded-Proto: https", "X-Forwarded-For: 192.0.2.8", "Cookie: " + cookie}
	shown := d.Get("/dashboard/"+page, headers...)
	token := regexp.MustCompile(`name="form" value="([^"]+)"`).FindStringSubmatch(shown.Text)
	if token == nil {
		d.t.Fatalf("%s: got %d and no form\n%s", page, shown.StatusCode, shown.Text)
	}
	form.Set("form", token[1])
	if seen := regexp.MustCompile(`name="seen" value="([^"]+)"`).FindStringSubmatch(shown.Text); seen != nil {
		form.Set("seen", seen[1])
	}
	return d.Send("POST", "/dashboard/"+action, form.Encode(), append(headers, "Content-Type: application/x-www-form-urlencoded")...)
}

// signIn signs in by the link in a text, and returns the cookie. The password is that of an invitation, "" for none.
func (d *auditDay) signIn(text, password string) string {
	d.t.Helper()
	link := regexp.MustCompile(`link=([^\s<&]+)`).FindStringSubmatch(text)
	if link == nil {
		d.t.Fatalf("no link in %s", text)
	}
	d.secret("link", link[1])
	form := url.Values{"link": {link[1]}}
	if password != "" {
		form.Set("password", password)
	}
	r := d.Send("POST", "/dashboard/sign-in", form.Encode(), "X-Forwarded-Proto: https", "X-Forwarded-For: 192.0.2.8", "Content-Type: application/x-www-form-urlencoded")
	cookie, _, _ := strings.Cut(r.Header.Get("Set-Cookie"), ";")
	_, session, _ := strings.Cut(cookie, "=")
	d.secret("session", session)
	return cookie
}

// invite invites a person by the dashboard, and signs the person in with a password. It returns the cookie of the person.
func (d *auditDay) invite(cookie, name, role, password string) string {
	d.t.Helper()
	d.secret("password of "+name, password)
	return d.signIn(d.post(cookie, "people/new", "people", url.Values{"name": {name}, "email": {name + "@example.com"}, "role": {role}}), password)
}

// logged returns the whole audit log as the API answers it, page by page, and its entries, oldest first.
func (d *auditDay) logged(owner string) (text string, entries []auditedEntry) {
	d.t.Helper()
	for cursor := ""; ; {
		r := d.Get("/functions/v1/audit?limit=7"+cursor, "Authorization: Bearer "+owner, "X-Forwarded-Proto: https")
		var page struct {
			Data   []auditedEntry
			Count  int
			Cursor string
		}
		if err := json.Unmarshal([]byte(r.Text), &page); err != nil || r.StatusCode != 200 {
			d.t.Fatalf("GET /audit: got %d, %v: %s", r.StatusCode, err, r.Text)
		}
		text, entries = text+r.Text, append(entries, page.Data...)
		if page.Cursor == "" {
			if page.Count != len(entries) {
				d.t.Errorf("count: got %d, want the number of all entries, %d", page.Count, len(entries))
			}
			break
		}
		cursor = "&cursor=" + page.Cursor
	}
	for i := range len(entries) / 2 {
		entries[i], entries[len(entries)-1-i] = entries[len(entries)-1-i], entries[i]
	}
	return text, entries
}

type auditedEntry struct {
	ID, At, Action string
	IP             *string
	Actor          struct{ Kind, ID, Name string }
	Target         struct{ Kind, ID, Name string }
}

// The audit log of a day on which an account is changed by two programs, three people, commands, files and the configuration: each change leaves its
// entry, in order, with actor and address, and no entry has a secret or the digest of a secret. What a role may not do leaves none.
func TestAuditOfADay(t *testing.T) {
	d := &auditDay{server: newServer(t), t: t, secrets: map[string]string{}}
	const configured = "lk_ConfiguredOwnerKey00000000000"
	d.secret("the configured key", configured)
	d.step("config", "account.create acme", "owner_key.create default")
	d.Start("store badger %dir/store"+caddytest.AccountOption("acme", configured), "limitkeeper_api")
	caddytest.Eventually(t, "the configured account", func() bool { return d.Exists("acme") })

	d.step("command account key create", "owner_key.create billing")
	d.run("account", "key", "create", "acme", "--name", "billing")
	billing := d.newest()
	d.step("command account set", "account.update acme")
	d.run("account", "set", "acme", "--key-prefix", "acme_live_")
	d.run("account", "set", "acme", "--key-prefix", "acme_live_") // changes nothing

	d.step("owner_key default", "plan.create Basic", "user.create Customer", "key.create Production")
	plan := d.call(configured, "POST", "/plans", `{"name": "Basic", "max_requests": 1000, "request_period": "month"}`)
	d.call(configured, "POST", "/users", `{"name": "Customer", "email": "customer@example.com"}`)
	key := d.call(configured, "POST", "/keys", fmt.Sprintf(`{"name": "Production", "user_id": 1, "plan_id": %q}`, plan["id"]))
	path := "/keys/" + key["id"].(string)
	d.Validate(configured, key["api_key"].(string)) // no change

	d.step("owner_key billing", "plan.update Basic", "key.regenerate Production", "usage.adjust ", "prices.update ", "key.update Production")
	d.call(billing, "PUT", "/plans/"+plan["id"].(string), `{"max_requests": 2000}`)
	d.call(billing, "PUT", "/plans/"+plan["id"].(string), `{"max_requests": 2000}`)
	d.call(billing, "POST", path+"/regenerate", `{"grace_seconds": 600}`)
	for range 2 { // the second one is a repeat
		d.call(billing, "POST", path+"/usage/adjust", `{"delta": 5, "reason": "outage", "request_id": "adjust-1"}`)
	}
	d.call(billing, "PUT", "/prices", `{"rules": [{"endpoint": "POST /v1/search*", "costs": {"requests": 10}}]}`)
	d.call(billing, "PUT", path, `{"status": "inactive"}`)

	d.step("command account sign-in", "sign_in.link ")
	cookie := d.signIn(d.run("account", "sign-in", "acme", "--url", "https://localhost"), "")
	const password = "correct horse battery staple"
	d.secret("password", password)
	d.step("person acme", "sign_in.password ", "plan.create Gold", "owner_key.create laptop", "owner_key.revoke laptop", "user.update Customer, Limited")
	d.post(cookie, "settings", "settings/password", url.Values{"password": {password}})
	d.post(cookie, "plans/new", "plans", url.Values{"name": {"Gold"}, "max_requests": {"5000"}, "request_period": {"day"}})
	shown := d.post(cookie, "owner-keys/new", "owner-keys", url.Values{"name": {"laptop"}, "role": {"owner"}})
	d.secret("owner's key of the dashboard", regexp.MustCompile(`lk_[0-9A-Za-z]{29}`).FindString(shown))
	revoke := "owner-keys/" + regexp.MustCompile(`okey_[0-9A-Za-z]{20}`).FindString(d.lastOwnerKey()) + "/revoke"
	d.post(cookie, revoke, revoke, url.Values{})
	d.post(cookie, "users/1/edit", "users/1", url.Values{"name": {"Customer, Limited"}, "email": {"customer@example.com"}})

	d.step("person acme", "person.create editing")
	d.step("person editing", "person.password editing")
	editing := d.invite(cookie, "editing", "editor", password+" 2")
	d.step("person acme", "person.create support")
	d.step("person support", "person.password support")
	support := d.invite(cookie, "support", "support", password+" 3")
	d.step("person editing", "plan.update Gold", "webhook.create ")
	gold := "plans/" + regexp.MustCompile(`plan_[0-9A-Za-z]+`).FindString(regexp.MustCompile(`plans/plan_[^"]+">Gold`).FindString(d.page(editing, "plans")))
	d.post(editing, gold+"/edit", gold, url.Values{"name": {"Gold"}, "max_requests": {"6000"}, "request_period": {"day"}})
	shown = d.post(editing, "webhooks/new", "webhooks", url.Values{"url": {"https://hooks.example.com/limitkeeper"}})
	d.secret("secret of the webhook", regexp.MustCompile(`whsec_[0-9A-Za-z+/=]+`).FindString(shown))
	d.step("owner_key default", "key.create Mobile")
	d.step("person support", "usage.adjust ", "key.update Mobile")
	mobile := "keys/" + d.call(configured, "POST", "/keys", fmt.Sprintf(`{"name": "Mobile", "user_id": 1, "plan_id": %q}`, plan["id"]))["id"].(string)
	d.post(support, "users/1/adjust", "users/1/adjust", url.Values{"way": {"give"}, "number": {"2"}, "meter": {"requests"}, "reason": {"an outage"}})
	d.post(support, mobile, mobile+"/disabled", url.Values{"disabled": {"true"}})
	d.refuse(support, mobile, mobile+"/disabled", url.Values{"disabled": {"false"}}) // leaves no entry, as each refusal
	d.refuse(editing, "settings", "people", url.Values{"name": {"a friend"}, "email": {"friend@example.com"}, "role": {"owner"}})

	d.step("command apply", "plan.create free", "user.create Applied", "key.create ci")
	file := func(name, text string) string {
		name = filepath.Join(d.Dir, name)
		d.Must(os.WriteFile(name, []byte(text), 0o600))
		return name
	}
	limits := file("limits.yaml", "account: acme\nplans:\n  - {name: free, max_requests: 100, request_period: day}\nusers:\n  - {external_id: cus_1, name: Applied, plan: free, keys: [{name: ci}]}\n")
	applied := d.run("apply", limits)
	d.secret("key of apply", cmp.Or(regexp.MustCompile(`acme_live_[0-9A-Za-z]{32}`).FindString(applied), "no key"))
	d.run("apply", limits) // changes nothing

	imported := "acme_live_ImportedKeyOfAnotherSystem01"
	d.secret("imported key", imported)
	d.step("command import", "key.import ")
	d.run("import", "--csv", file("keys.csv", "key,user_name,user_external_id,plan\n"+imported+",Moved,cus_2,free\n"), "--account", "acme")

	d.step("command usage adjust", "usage.adjust ")
	d.run("usage", "adjust", "acme", "1", "--delta", "-3", "--reason", "goodwill")
	d.step("owner_key default", "key.delete Production", "user.delete Customer, Limited", "plan.delete Basic")
	d.call(configured, "DELETE", path, "")
	d.call(configured, "DELETE", "/users/1", "")
	d.call(configured, "DELETE", "/plans/"+plan["id"].(string), "")
	d.step("person acme", "sign_in.end_sessions ", "person.end_sessions editing", "person.end_sessions support")
	d.post(cookie, "settings", "sign-out-everywhere", url.Values{})

	text, entries := d.logged(configured)
	var got []string
	for _, e := range entries {
		who := strings.TrimSpace(e.Actor.Kind + " " + map[string]string{"command": e.Actor.ID}[e.Actor.Kind])
		if e.Actor.Kind == "owner_key" || e.Actor.Kind == "person" {
			who += " " + e.Actor.Name
		}
		got = append(got, who+" "+e.Action+" "+e.Target.Name)
		if ip := map[string]string{"owner_key": "192.0.2.7", "person": "192.0.2.8"}[e.Actor.Kind]; ip != core.OrZero(e.IP) {
			t.Errorf("%s by %s: got the address %q, want %q", e.Action, who, core.OrZero(e.IP), ip)
		}
		if e.Actor.Kind == "command" && e.Actor.Name == "" {
			t.Errorf("%s: the user who has run the command is missing", e.Action)
		}
	}
	slices.Sort(got[max(0, len(got)-2):]) // one transaction: in the order of the ids
	if diff := gocmp.Diff(d.want, got); diff != "" {
		t.Errorf("the audit log of the day (-want +got):\n%s", diff)
	}
	d.holdsNoSecret(text)
}

// holdsNoSecret fails if a text has a secret of the day, or its digest in any form.
func (d *auditDay) holdsNoSecret(text string) {
	d.t.Helper()
	if len(d.secrets) < 10 {
		d.t.Errorf("got %d secrets of the day, want all", len(d.secrets))
	}
	for what, secret := range d.secrets {
		digest := secrets.DigestOf(secret)
		for form, part := range map[string]string{"": secret, "digest in hex": hex.EncodeToString(digest[:]),
			"digest in base64": base64.RawStdEncoding.EncodeToString(digest[:]), "digest in base64url": base64.RawURLEncoding.EncodeToString(digest[:])} {
			if part == "" || strings.Contains(strings.ToLower(text), strings.ToLower(part)) {
				d.t.Errorf("the audit log has the %s: %s %s", what, form, part)
			}
		}
	}
	if strings.Contains(text, "argon2") {
		d.t.Error("the audit log has the hash of a password")
	}
}

// newest returns the secret that was added last.
func (d *auditDay) newest() (newest string) {
	for what, s := range d.secrets {
		if strings.HasSuffix(what, fmt.Sprint(" ", len(d.secrets)-1)) {
			newest = s
		}
	}
	return newest
}

// lastOwnerKey returns the last line of the list of owner's keys.
func (d *auditDay) lastOwnerKey() string {
	lines := strings.Split(strings.TrimSpace(d.run("account", "key", "list", "acme")), "\n")
	return lines[len(lines)-1]
}
