package dashboard_test

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
)

// axe is axe-core, which finds accessibility violations.
//
//go:embed testdata/axe.min.js
var axe string

// violation is a rule of axe-core that a page breaks.
type violation struct {
	ID     string `json:"id"`
	Impact string `json:"impact"`
	Help   string `json:"help"`
	Nodes  []struct {
		HTML    string `json:"html"`
		Summary string `json:"failureSummary"`
	} `json:"nodes"`
}

func (v violation) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s (%s): %s", v.ID, v.Impact, v.Help)
	for _, n := range v.Nodes {
		fmt.Fprintf(&b, "\n\t%s\n\t%s", n.HTML, strings.ReplaceAll(n.Summary, "\n", "\n\t"))
	}
	return b.String()
}

// axeRun runs the rules of WCAG 2.2 AA and the best practices of axe-core.
const axeRun = `axe.run({runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]}).then(r => r.violations)`

// accessible fails when the page that is shown breaks a rule.
func accessible(what string) step {
	return chromedp.Func(func(ctx context.Context, t *chromedp.Target) error {
		if _, err := chromedp.Evaluate[any](axe+";true")(ctx, t); err != nil {
			return err
		}
		found, err := chromedp.Evaluate[[]violation](axeRun, chromedp.EvalAwaitPromise)(ctx, t)
		if err != nil {
			return err
		}
		var faults []error
		for _, v := range found {
			faults = append(faults, fmt.Errorf("%s: %s", what, v))
		}
		return errors.Join(faults...)
	})
}

// The check reports a page with violations.
func TestAxeFinds(t *testing.T) {
	const page = `data:text/html,<html lang="en"><title>x</title><main><h1>x</h1><input><p style="color:%23999">grey</p></main>`
	err := chromedp.Do(chrome(t), chromedp.Navigate(page), accessible("a page with faults"))
	if err == nil || !strings.Contains(err.Error(), "label") || !strings.Contains(err.Error(), "color-contrast") {
		t.Errorf("got %v, want a missing label and too little contrast", err)
	}
}
