package main

import (
	"bytes"
	"errors"
	"flag"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// The part may stand before or behind the options, and everything has a default.
func TestParse(t *testing.T) {
	for _, args := range []string{"proxy -rounds 2 -connections 8,16", "-rounds 2 -connections 8,16 proxy"} {
		o, err := parse(strings.Fields(args), io.Discard)
		if err != nil {
			t.Errorf("%s: %v", args, err)
			continue
		}
		if o.part != "proxy" || o.rounds != 2 || !cmp.Equal(o.connections, []int{8, 16}) || o.duration != 5*time.Second {
			t.Errorf("%s: got %+v", args, o)
		}
	}
	if o, err := parse(nil, io.Discard); err != nil || o.part != "all" {
		t.Errorf("nothing: got %+v, %v, want all parts", o, err)
	}
}

// What cannot be is refused before anything is started, and the error says what can be.
func TestParseRefuses(t *testing.T) {
	for args, want := range map[string]string{
		"latency":               "want one of proxy",
		"proxy -connections x":  "want numbers",
		"proxy -connections 0":  "want numbers",
		"proxy -rounds 0":       "at least 1 round",
		"proxy -duration 100ms": "a duration of 1s",
	} {
		if _, err := parse(strings.Fields(args), io.Discard); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want an error with %q", args, err, want)
		}
	}
}

// The help names every part.
func TestHelp(t *testing.T) {
	var out bytes.Buffer
	if _, err := parse([]string{"-h"}, &out); !errors.Is(err, flag.ErrHelp) {
		t.Errorf("got %v, want help", err)
	}
	for _, p := range parts {
		if !strings.Contains(out.String(), p.name) {
			t.Errorf("the help does not name %s:\n%s", p.name, &out)
		}
	}
}

func TestWants(t *testing.T) {
	o := &options{only: []string{"process", "nginx"}}
	for name, want := range map[string]bool{gatewayOf + "process": true, gatewayOf + "power": false, nginxLimit: true} {
		if got := o.wants(name); got != want {
			t.Errorf("%s: got %v, want %v", name, got, want)
		}
	}
	if !(&options{}).wants("anything") {
		t.Error("without -only something is left out")
	}
}
