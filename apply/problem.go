package apply

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/document"
)

// MaxProblems is the largest number of problems that are listed.
const MaxProblems = 100

// Problem is a reason to refuse a file.
type Problem struct {
	Line int    // from 1; 0 for none
	Path string // of the value, such as users[3].email; "" for the whole file
	Text string
}

func (p Problem) String() string {
	var b strings.Builder
	if p.Line > 0 {
		fmt.Fprintf(&b, "line %d: ", p.Line)
	}
	if p.Path != "" {
		b.WriteString(p.Path + ": ")
	}
	return b.String() + p.Text
}

// Problems is the error for a file that is refused. Nothing was changed.
type Problems struct {
	List  []Problem // the first MaxProblems
	Total int
}

// Error implements error, with a line for each problem.
func (p *Problems) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s, nothing was changed:", countNoun(p.Total, "problem"))
	for _, one := range p.List {
		b.WriteString("\n  " + one.String())
	}
	if more := p.Total - len(p.List); more > 0 {
		fmt.Fprintf(&b, "\n  and %d more", more)
	}
	return b.String()
}

// add adds a problem, unless it is known. Secrets in its text are masked.
func (p *Problems) add(line int, path, text string) {
	one := Problem{line, core.MaskSecrets(path), core.MaskSecrets(text)}
	if slices.Contains(p.List, one) {
		return
	}
	if p.Total++; len(p.List) < MaxProblems {
		p.List = append(p.List, one)
	}
}

// err returns the problems as an error, by line, nil without problems.
func (p *Problems) err() error {
	if p.Total == 0 {
		return nil
	}
	slices.SortStableFunc(p.List, func(a, b Problem) int { return cmp.Compare(uint(a.Line-1), uint(b.Line-1)) }) // without a line: last
	return p
}

// position is the place of an object in a file.
type position struct {
	line    int
	path    string
	members map[string]int // lines of the members
}

// names are the members of the file for the fields that have other names in core.
var names = map[string]string{"plan_id": "plan", "id": ""}

// refuse adds the problem of an error of core. It returns the error if the file is not the reason for it.
func (p *Problems) refuse(at position, err error) error {
	e, ok := errors.AsType[*core.Error](err)
	if !ok || e.Code == core.CodeUnavailable {
		return err
	}
	field, text := e.Field, e.Message
	if e.Detail != "" {
		text = e.Detail
	}
	if name, other := names[field]; other {
		field = name
	}
	p.add(at.lineOf(field), document.Join(at.path, field), text)
	return nil
}

// countNoun puts a number before a noun: "1 change", "2 changes".
func countNoun(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
