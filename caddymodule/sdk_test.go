package caddymodule

import (
	"encoding/json"
	"os"
	"os/exec"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/limitkeeper/limitkeeper/core"
)

// The official clients of OpenAI and Anthropic work through the gateway as without it, and understand its refusals.
func TestSDKs(t *testing.T) {
	const folder = "testdata/sdk"
	if _, err := os.Stat(folder + "/node_modules/openai"); err != nil {
		t.Fatalf("%v: `make tools` installs it", err)
	}
	s, up := newServer(t), newModel(t)
	s.Start("store memory", `handle /openai/* {
		uri strip_prefix /openai
		limitkeeper {
			charge prices from openai
			cost tokens request max_tokens 4096
			errors openai
		}
		`+up.proxy()+`
	}
	handle /anthropic/* {
		uri strip_prefix /anthropic
		limitkeeper {
			charge prices from anthropic
			cost tokens request max_tokens 4096
		}
		`+up.proxy()+`
	}`)
	ten := s.aiTenant(10_000)
	cmd := exec.Command("node", "client.mjs", s.URL(""), ten.Secret)
	cmd.Dir = folder
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("node: %v: %s", err, err.(*exec.ExitError).Stderr)
	}
	var got map[string]any
	if err := json.Unmarshal(out, &got); err != nil {
		t.Fatalf("%v in %s", err, out)
	}
	type object = map[string]any
	want := object{
		"chat":       object{"text": "hello", "usage": 1020.0},
		"stream":     object{"text": "hello", "usage": 0.0},
		"asked":      object{"usage": 1020.0},
		"message":    object{"text": "hello", "usage": 120.0},
		"events":     object{"types": []any{"message_start", "content_block_delta", "message_delta", "message_stop"}},
		"refused":    object{"name": "RateLimitError", "status": 429.0, "code": "insufficient_quota", "type": "insufficient_quota"},
		"unknownKey": object{"name": "AuthenticationError", "status": 401.0, "code": "invalid_api_key", "type": "invalid_request_error"},

		"refusedMessage": object{"name": "RateLimitError", "status": 429.0, "code": nil, "type": nil},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	s.awaitUsed(ten, "all requests", []string{core.MeterRequests, "tokens"}, 5, 3*1020+2*1070)
}
