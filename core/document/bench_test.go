package document

import "testing"

func BenchmarkParseJSON(b *testing.B) {
	text := []byte(`{"api_key":"lk_user_sQO8KoE7movki4ULfQtlPBIeeD6JiE1y","endpoint":"/v1/items/42","method":"GET"}`)
	var v Value
	b.ReportAllocs()
	for b.Loop() {
		if err := v.ParseJSON(text, 32); err != nil {
			b.Fatal(err)
		}
	}
}
