package main

import (
	"strings"
	"unicode/utf8"
)

// table is text in rows and columns.
type table struct {
	head []string
	rows [][]string
}

// String writes the table in Markdown, with columns that stand under each other. The
// first column is text, the others are numbers.
func (t table) String() string {
	widths := make([]int, len(t.head))
	for _, row := range append([][]string{t.head}, t.rows...) {
		for i, cell := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell), 3)
		}
	}
	var b strings.Builder
	t.line(&b, t.head, widths)
	for i, w := range widths {
		rule := strings.Repeat("-", w+2)
		if i > 0 {
			rule = rule[1:] + ":"
		}
		b.WriteString("|" + rule)
	}
	b.WriteString("|\n")
	for _, row := range t.rows {
		t.line(&b, row, widths)
	}
	return b.String()
}

// line writes a row.
func (t table) line(b *strings.Builder, row []string, widths []int) {
	for i, w := range widths {
		cell := ""
		if i < len(row) {
			cell = row[i]
		}
		pad := strings.Repeat(" ", w-utf8.RuneCountInString(cell))
		if i == 0 {
			b.WriteString("| " + cell + pad + " ")
		} else {
			b.WriteString("| " + pad + cell + " ")
		}
	}
	b.WriteString("|\n")
}
