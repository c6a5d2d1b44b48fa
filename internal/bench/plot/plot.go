// Package plot draws the figures of benchmarks over one common axis.
package plot

import (
	"fmt"
	"io"
	"strings"
)

// Line is one figure over the axis.
type Line struct {
	Title, Unit string
	// Values has one for each place on the axis.
	Values []float64
}

// Sizes of the drawing, in pixels.
const (
	width  = 720
	height = 130
	left   = 70
	right  = 10
	gap    = 34
)

// WriteSVG draws the lines below each other, each from 0 to its greatest value.
// places are where on the axis the values belong, from 0 to end; label says what
// the axis ends at.
func WriteSVG(w io.Writer, lines []Line, places []float64, end float64, label string) error {
	var s strings.Builder
	total := len(lines)*(height+gap) + 30
	fmt.Fprintf(&s, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif" font-size="12">`+"\n", width, total)
	fmt.Fprintf(&s, `<rect width="%d" height="%d" fill="#ffffff"/>`+"\n", width, total)
	for n, l := range lines {
		top, most := n*(height+gap)+24, 0.0
		for _, v := range l.Values {
			most = max(most, v)
		}
		fmt.Fprintf(&s, `<text x="%d" y="%d" fill="#222222">%s</text>`+"\n", left, top-8, l.Title)
		fmt.Fprintf(&s, `<path d="M%d %dV%dH%d" fill="none" stroke="#999999"/>`+"\n", left, top, top+height, width-right)
		fmt.Fprintf(&s, `<text x="%d" y="%d" fill="#555555" text-anchor="end">%.0f %s</text>`+"\n", left-6, top+10, most, l.Unit)
		fmt.Fprintf(&s, `<text x="%d" y="%d" fill="#555555" text-anchor="end">0</text>`+"\n", left-6, top+height)
		var points []string
		for i, v := range l.Values {
			x := left + float64(width-right-left)*places[i]/max(end, 1e-9)
			y := float64(top+height) - float64(height)*v/max(most, 1e-9)
			points = append(points, fmt.Sprintf("%.1f,%.1f", x, y))
		}
		fmt.Fprintf(&s, `<polyline points="%s" fill="none" stroke="#1f6feb" stroke-width="2"/>`+"\n", strings.Join(points, " "))
	}
	fmt.Fprintf(&s, `<text x="%d" y="%d" fill="#555555" text-anchor="end">%s</text>`+"\n</svg>\n", width-right, total-4, label)
	_, err := io.WriteString(w, s.String())
	return err
}
