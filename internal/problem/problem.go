// Package problem lists the reasons why a file is refused.
package problem

import "fmt"

// Problem is a reason to refuse a file.
type Problem struct {
	Line int    `json:"line"`           // from 1; 0 for none
	Path string `json:"path,omitempty"` // of the value, such as users[3].email; "" for none
	Text string `json:"text"`
}

// String returns the problem on one line.
func (p Problem) String() string {
	text := p.Text
	if p.Path != "" {
		text = p.Path + ": " + text
	}
	if p.Line > 0 {
		text = fmt.Sprintf("line %d: %s", p.Line, text)
	}
	return text
}

// most is the largest number of problems that a list keeps.
const most = 100

// List has the first 100 problems of a file. The zero value has none.
type List struct {
	First []Problem `json:"first"`
	Total int       `json:"total"` // including the problems after the first 100
}

// Add adds a problem.
func (l *List) Add(p Problem) {
	if l.Total++; len(l.First) < most {
		l.First = append(l.First, p)
	}
}

// Lines returns a line for each kept problem, and one with the number of the others.
func (l *List) Lines() (lines []string) {
	for _, p := range l.First {
		lines = append(lines, p.String())
	}
	if more := l.Total - len(l.First); more > 0 {
		lines = append(lines, fmt.Sprintf("and %d more", more))
	}
	return lines
}
