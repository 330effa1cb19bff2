package keyimport

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/memstore"
)

// answers has, for each recipe of docs/migration.md, shell patterns of the beginning of the arguments of curl or aws, each with an
// answer in the form that the documentation of the other system shows. The first pattern that fits counts.
var answers = map[string][][2]string{
	"Kong": {
		{"*/consumers*", `{"data":[
			{"id":"84a73fb8-50fc-44a7-a4d5-aa17728ee83f","username":"ann","custom_id":"cus_17","created_at":1422386534,"updated_at":1422386534,"tags":null},
			{"id":"a51b05c4-fc81-4552-88a0-17842065e8b2","username":null,"custom_id":"cus_18","created_at":1422386534,"updated_at":1422386534,"tags":["x"]},
			{"id":"8a388226-80e8-4027-a486-25e4f7db5d21","username":"bob","custom_id":null,"created_at":1422386534,"updated_at":1422386534,"tags":null}],"next":null}`},
		{"*/key-auths*", `{"data":[
			{"id":"b2f34145-0343-41a4-9602-4c69dec2f269","key":"IL1deIyHyQA40WpeLeA1bIUXuvTwlGjo","consumer":{"id":"84a73fb8-50fc-44a7-a4d5-aa17728ee83f"},"created_at":1422386534,"ttl":null,"tags":null},
			{"id":"b2f34145-0343-41a4-9602-4c69dec2f26a","key":"acme-2","consumer":{"id":"a51b05c4-fc81-4552-88a0-17842065e8b2"},"created_at":1422386534,"ttl":86400,"tags":null},
			{"id":"b2f34145-0343-41a4-9602-4c69dec2f26b","key":"acme-3","consumer":{"id":"8a388226-80e8-4027-a486-25e4f7db5d21"},"created_at":1422386534,"tags":null}],"next":null}`},
	},
	"Tyk": {
		{"*/tyk/keys/*e5", `{"allowance":1000,"rate":1000,"per":60,"expires":0,"quota_max":500,"quota_renews":1715847135,"quota_remaining":420,"quota_renewal_rate":2520000,
			"access_rights":{},"org_id":"5e9d9544a1dcd60001d0ed20","is_inactive":false,"apply_policies":null,"alias":"ann@example.com","meta_data":{},"tags":[]}`},
		{"*/tyk/keys/*02", `{"allowance":0,"rate":0,"per":0,"expires":4102444800,"quota_max":-1,"quota_renews":0,"quota_remaining":-1,"quota_renewal_rate":-1,
			"access_rights":{},"org_id":"5e9d9544a1dcd60001d0ed20","is_inactive":true,"apply_policies":["641c15dd0fffb800010197bf"],"alias":"","meta_data":null,"tags":null}`},
		{"*/tyk/keys", `{"keys":["5e9d9544a1dcd60001d0ed20e7f75f9e03534825b7aef9df749582e5","5e9d9544a1dcd60001d0ed2054b53d3aeba6db5c35000002"]}`},
	},
	"Unkey": {
		{"*/v2/apis.listKeys*", `{"meta":{"requestId":"req_1"},"data":[
			{"keyId":"key_1","start":"sk_3Z","enabled":true,"name":"Production","createdAt":1704067200000,"expires":4102444800000,"plaintext":"sk_3ZaBcDeFgHiJkLmN","identity":{"id":"id_1","externalId":"user_7"}},
			{"keyId":"key_2","start":"sk_4Z","enabled":false,"createdAt":1704067200000,"plaintext":"sk_4ZaBcDeFgHiJkLmN"},
			{"keyId":"key_3","start":"sk_5Z","enabled":true,"createdAt":1704067200000}],"pagination":{"hasMore":false}}`},
	},
	"APISIX": {
		{"*/consumers/jack/credentials", `{"total":0,"list":[]}`},
		{"*/consumers/jill/credentials", `{"total":2,"list":[
			{"key":"/apisix/consumers/jill/credentials/a","createdIndex":17,"modifiedIndex":17,"value":{"id":"a","create_time":1700000000,"update_time":1700000000,"plugins":{"key-auth":{"key":"auth-two"}}}},
			{"key":"/apisix/consumers/jill/credentials/b","createdIndex":18,"modifiedIndex":18,"value":{"id":"b","create_time":1700000000,"update_time":1700000000,"plugins":{"basic-auth":{"username":"x","password":"y"}}}}]}`},
		{"*/consumers", `{"total":2,"list":[
			{"key":"/apisix/consumers/jack","createdIndex":15,"modifiedIndex":15,"value":{"username":"jack","create_time":1700000000,"update_time":1700000000,"plugins":{"key-auth":{"key":"auth-one"}}}},
			{"key":"/apisix/consumers/jill","createdIndex":16,"modifiedIndex":16,"value":{"username":"jill","create_time":1700000000,"update_time":1700000000}}]}`},
	},
	"AWS API Gateway usage plans": {
		{"*get-api-keys*", `{"items":[
			{"id":"7krkkcl3a1","value":"AwsKeyValue0000000000000000000000000001","name":"prod","customerId":"cus_17","enabled":true,"createdDate":"2024-05-14T10:00:00+00:00","lastUpdatedDate":"2024-05-14T10:00:00+00:00","stageKeys":[]},
			{"id":"7krkkcl3a2","value":"AwsKeyValue0000000000000000000000000002","name":"dev","enabled":false,"createdDate":"2024-05-14T10:00:00+00:00","lastUpdatedDate":"2024-05-14T10:00:00+00:00","stageKeys":[]},
			{"id":"7krkkcl3a3","value":"AwsKeyValue0000000000000000000000000003","name":"of another plan","enabled":true,"createdDate":"2024-05-14T10:00:00+00:00","lastUpdatedDate":"2024-05-14T10:00:00+00:00","stageKeys":[]}]}`},
		{"*get-usage-plan-keys*", `{"items":[{"id":"7krkkcl3a1","type":"API_KEY","name":"prod"},{"id":"7krkkcl3a2","type":"API_KEY","name":"dev"}]}`},
		{"*get-usage *", `{"usagePlanId":"plan1","startDate":"2026-11-01","endDate":"2026-11-03","items":{"7krkkcl3a1":[[0,1000],[10,990],[30,960]]}}`},
	},
}

// Each recipe of docs/migration.md makes a file that can be imported, from answers of the other system.
func TestRecipes(t *testing.T) {
	if _, err := exec.LookPath("jq"); err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	text, err := os.ReadFile("../docs/migration.md")
	if err != nil {
		t.Fatal(err)
	}
	tested := 0
	for section := range strings.SplitSeq(string(text), "\n## ") {
		name, _, _ := strings.Cut(section, "\n")
		_, recipe, found := strings.Cut(section, "```console\n")
		if _, own, _ := strings.Cut(section, "limitkeeper import"); !found || own != "" {
			continue
		}
		recipe, _, _ = strings.Cut(recipe, "```")
		tested++
		t.Run(name, func(t *testing.T) {
			report, file := runRecipe(t, recipe, answers[name])
			want := map[string]string{
				"Kong":                        "3 keys 3 users 0 used",
				"Tyk":                         "2 keys 2 users 1 used",
				"Unkey":                       "2 keys 2 users 0 used",
				"APISIX":                      "2 keys 2 users 0 used",
				"AWS API Gateway usage plans": "2 keys 2 users 1 used",
			}[name]
			if report != want {
				t.Errorf("%s, want %s:\n%s", report, want, file)
			}
		})
	}
	if tested != len(answers) {
		t.Errorf("%d recipes, want %d", tested, len(answers))
	}
}

// runRecipe runs a recipe with the answers of the other system, and checks the file that it writes against an account with
// the plan Pro.
func runRecipe(t *testing.T, recipe string, answers [][2]string) (report, file string) {
	t.Helper()
	dir := t.TempDir()
	var script strings.Builder
	script.WriteString("set -eu\nTYK_SECRET=x UNKEY_ROOT_KEY=x API_ID=api_1 ADMIN_KEY=x PLAN=plan1\nanswer() {\n\tcase \"$* \" in\n")
	for _, a := range answers {
		script.WriteString("\t" + strings.ReplaceAll(a[0], " ", `\ `) + "*) cat <<'END'\n" + a[1] + "\nEND\n\t;;\n")
	}
	script.WriteString("\t*) echo \"unexpected: $*\" >&2; exit 1;;\n\tesac\n}\ncurl() { answer \"$@\"; }\naws() { answer \"$@\"; }\n" + recipe)
	cmd := exec.CommandContext(t.Context(), "sh", "-c", script.String())
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	text, err := os.ReadFile(filepath.Join(dir, "keys.csv"))
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t, memstore.New())
	_, err = w.svc.CreatePlan(t.Context(), w.account, core.PlanPatch{Name: new("Pro"), Limit: core.Some(int64(1000)), Period: new("month")})
	w.ok(err)
	r, err := Check(t.Context(), w.svc, w.store, bytes.NewReader(text), Options{Account: "acme"})
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	return fmt.Sprint(r.Keys, " keys ", r.Users, " users ", r.Used, " used"), string(text)
}
