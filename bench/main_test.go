package main

import (
	"bytes"
	"errors"
	"flag"
	"io"
	"strings"
	"testing"
	"time"
)

// A part is selected before or after the options, and every option has a default.
func TestParse(t *testing.T) {
	for _, args := range []string{"proxy -rounds 2 -out x", "-rounds 2 -out x proxy"} {
		o, err := parse(strings.Fields(args), io.Discard)
		if err != nil {
			t.Errorf("%s: %v", args, err)
			continue
		}
		if o.part != "proxy" || o.rounds != 2 || o.out != "x" || o.duration != 3*time.Second {
			t.Errorf("%s: got %+v", args, o)
		}
	}
	if o, err := parse(nil, io.Discard); err != nil || o.part != "all" {
		t.Errorf("no arguments: got %+v, %v, want all parts", o, err)
	}
}

// A wrong option is refused before a program starts, and the error names the right ones.
func TestParseRefuses(t *testing.T) {
	for args, want := range map[string]string{
		"latency":               "want one of all, proxy",
		"proxy -rounds 0":       "at least 1 round",
		"proxy -duration 100ms": "a duration of 1s",
		"proxy -only plain":     "add -print-only",
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

// -only selects names by any of its words.
func TestWants(t *testing.T) {
	o := &options{only: []string{"process", "nginx"}}
	for name, want := range map[string]bool{gatewayName + "durability process": true, gatewayName + "durability power": false, nginxLimit: true} {
		if got := o.wants(name); got != want {
			t.Errorf("%s: got %v, want %v", name, got, want)
		}
	}
	if !(&options{}).wants("anything") {
		t.Error("without -only: got false, want every name")
	}
}
