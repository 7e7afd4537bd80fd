package main

import (
	"fmt"
	"html"
	"strings"
)

// chart is a figure as horizontal bars.
type chart struct {
	title, unit string
	bars        []bar
}

// bar is the median of a server's rounds, with the least and the most of them.
type bar struct {
	label               string
	middle, least, most float64
}

// The sizes of a chart in pixels.
const (
	chartWidth = 720
	labelWidth = 160
	valueWidth = 80
	headHeight = 56
	barHeight  = 18
	rowHeight  = 28
)

// svg draws the bars from zero, and across the end of each a line from the least to the
// most of the rounds.
func (c chart) svg() string {
	longest := 0.0
	for _, b := range c.bars {
		longest = max(longest, b.most)
	}
	scale := 0.0
	if longest > 0 {
		scale = (chartWidth - labelWidth - valueWidth) / longest
	}
	height := headHeight + rowHeight*len(c.bars)
	var s strings.Builder
	fmt.Fprintf(&s, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" font-family="sans-serif" font-size="13">`+"\n", chartWidth, height)
	s.WriteString(`<rect width="100%" height="100%" fill="#fff"/>` + "\n")
	fmt.Fprintf(&s, `<text x="8" y="20" font-size="15" font-weight="bold">%s</text>`+"\n", html.EscapeString(c.title))
	fmt.Fprintf(&s, `<text x="8" y="40" fill="#666">%s</text>`+"\n", html.EscapeString(c.unit))
	for i, b := range c.bars {
		color := "#3a7"
		if i == 0 {
			color = "#999"
		}
		top := headHeight + rowHeight*i
		middle := top + barHeight/2
		fmt.Fprintf(&s, `<text x="%d" y="%d" text-anchor="end">%s</text>`+"\n", labelWidth-8, middle+5, html.EscapeString(b.label))
		fmt.Fprintf(&s, `<rect x="%d" y="%d" width="%.1f" height="%d" fill="%s"/>`+"\n", labelWidth, top, b.middle*scale, barHeight, color)
		fmt.Fprintf(&s, `<path d="M%.1f %dH%.1f" stroke="#000"/>`+"\n", labelWidth+b.least*scale, middle, labelWidth+b.most*scale)
		fmt.Fprintf(&s, `<text x="%.1f" y="%d">%s</text>`+"\n", labelWidth+b.most*scale+8, middle+5, number(b.middle))
	}
	s.WriteString("</svg>\n")
	return s.String()
}
