package exchange

import "testing"

func TestBytes(t *testing.T) {
	b := &Bytes{All: 10, Each: 6}
	for _, tt := range []struct {
		owner string
		n     int64
		want  bool
	}{{"a", 6, true}, {"a", 1, false}, {"b", 4, true}, {"c", 1, false}} {
		if got := b.take(tt.owner, tt.n, false); got != tt.want {
			t.Errorf("%d bytes of %s: got %t", tt.n, tt.owner, got)
		}
	}
	if b.take("a", 1, true) || !b.take("c", 20, true) {
		t.Error("the first of an owner was refused, or not the second")
	}
	b.add("c", -20)
	b.add("a", -6)
	if !b.take("c", 6, false) {
		t.Error("6 bytes are free, and were refused")
	}
	b.add("b", -4)
	b.add("c", -6)
	if b.total != 0 || len(b.of) != 0 {
		t.Errorf("nothing is taken, and %d bytes count, of %v", b.total, b.of)
	}
}
