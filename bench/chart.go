package main

import (
	"encoding/xml"
	"fmt"
	"strings"
	"unicode/utf8"
)

// chart is a picture of horizontal bars in groups.
type chart struct {
	title, unit, note string
	groups            []barGroup
}

type barGroup struct {
	name string
	bars []bar
}

type bar struct {
	name, label string
	value       float64
	colour      int // bars that are the same thing have the same
}

// The measures of a chart, in pixels.
const (
	chartWidth  = 860
	chartMargin = 20
	barHeight   = 20
	barGap      = 6
	labelWidth  = 120 // to the right of the longest bar
	letterWidth = 7.2 // of a name, on average
)

// barColours are told apart also by who does not see colours as most do.
var barColours = []string{"#999999", "#0072b2", "#56b4e9", "#e69f00", "#009e73", "#cc79a7", "#d55e00", "#f0e442"}

// String returns the chart in SVG, with a background of its own: it is looked at on
// dark pages too.
func (c chart) String() string {
	var b strings.Builder
	left, most := c.scale()
	y := chartMargin + 16
	fmt.Fprintf(&b, `<text x="%d" y="%d" font-size="16" font-weight="bold">%s</text>`+"\n", chartMargin, y, escape(c.title))
	for _, g := range c.groups {
		y += 34
		fmt.Fprintf(&b, `<text x="%d" y="%d" font-weight="bold">%s, %s</text>`+"\n", chartMargin, y, escape(g.name), escape(c.unit))
		y += 10
		for _, bar := range g.bars {
			bar.write(&b, left, y, most)
			y += barHeight + barGap
		}
	}
	y += 22
	fmt.Fprintf(&b, `<text x="%d" y="%d" font-size="11" fill="#555555">%s</text>`+"\n", chartMargin, y, escape(c.note))
	height := y + chartMargin
	return fmt.Sprintf(`<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %[1]d %[2]d" font-family="sans-serif" font-size="13" fill="#222222">`+
		"\n"+`<rect width="%[1]d" height="%[2]d" fill="#ffffff"/>`+"\n%[3]s</svg>\n", chartWidth, height, b.String())
}

// scale returns where bars begin, beside the longest name, and the greatest value.
func (c chart) scale() (left int, most float64) {
	for _, g := range c.groups {
		for _, bar := range g.bars {
			left = max(left, int(float64(utf8.RuneCountInString(bar.name))*letterWidth))
			most = max(most, bar.value)
		}
	}
	return left + chartMargin + 10, most
}

// write writes a bar with its name and its label.
func (b bar) write(out *strings.Builder, left, y int, most float64) {
	width := 0.0
	if most > 0 {
		width = b.value / most * float64(chartWidth-left-labelWidth-chartMargin)
	}
	text := y + barHeight - 5
	fmt.Fprintf(out, `<text x="%d" y="%d" text-anchor="end">%s</text>`+"\n", left-8, text, escape(b.name))
	fmt.Fprintf(out, `<rect x="%d" y="%d" width="%.1f" height="%d" fill="%s"/>`+"\n", left, y, width, barHeight, barColours[b.colour%len(barColours)])
	fmt.Fprintf(out, `<text x="%.1f" y="%d">%s</text>`+"\n", float64(left)+width+6, text, escape(b.label))
}

// escape returns text as XML has it.
func escape(s string) string {
	var b strings.Builder
	_ = xml.EscapeText(&b, []byte(s)) // a strings.Builder takes everything
	return b.String()
}
