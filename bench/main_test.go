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

// Every option of a part has a default.
func TestParse(t *testing.T) {
	o, err := parse(strings.Fields("proxy -rounds 2 -only plain,process"), io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	if o.part != "proxy" || o.rounds != 2 || len(o.only) != 2 || o.duration != 3*time.Second {
		t.Errorf("got %+v", o)
	}
}

// A wrong option is refused before a program starts, and the error names the right ones.
func TestParseRefuses(t *testing.T) {
	for args, want := range map[string]string{
		"latency":               "want proxy, validate or store",
		"proxy store":           "want proxy, validate or store",
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
	for name := range parts {
		if !strings.Contains(out.String(), "  "+name) {
			t.Errorf("the help does not name %s:\n%s", name, &out)
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
