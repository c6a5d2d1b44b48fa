package status

import (
	"fmt"
	"html/template"
	"slices"
	"strconv"
	"strings"
)

// Sizes of the picture of gold, in pixels.
const (
	graphNodeWidth  = 216
	graphNodeHeight = 66
	graphGapX       = 56
	graphGapY       = 14
	graphNameMax    = 26 // characters of a name that fit into a node
)

// graphNode is a model, or a table that models read.
type graphNode struct {
	name, tone string
	subs       []string // lines below the name
	reads      []string
	column     int
	x, y       int
}

// Graph draws the models of gold with what they read, as an SVG; the table of
// models says the same in words.
func (v *view) Graph() template.HTML {
	if v.M.Jobs == nil || len(v.M.Jobs.Models) == 0 {
		return ""
	}
	nodes := graphNodes(v.M.Jobs.Models)
	width, height := layGraph(nodes)
	at := map[string]*graphNode{}
	for _, n := range nodes {
		at[n.name] = n
	}
	var b strings.Builder
	fmt.Fprintf(&b, `<div class="card scroll graph" role="region" aria-label="Graph of gold" tabindex="0"><svg viewBox="0 0 %d %d" width="%d" height="%d" role="img" aria-label="%s">`,
		width, height, width, height, template.HTMLEscapeString(graphWords(nodes)))
	for _, n := range nodes {
		for _, r := range n.reads {
			from := at[r]
			x, y, tx, ty := from.x+graphNodeWidth, from.y+graphNodeHeight/2, n.x, n.y+graphNodeHeight/2
			fmt.Fprintf(&b, `<path class="g-edge" d="M%d %dC%d %d %d %d %d %d"></path>`, x, y, x+graphGapX/2, y, tx-graphGapX/2, ty, tx, ty)
		}
	}
	for _, n := range nodes {
		n.draw(&b)
	}
	b.WriteString(`</svg></div>`)
	return template.HTML(b.String()) //nolint:gosec // every text in it was escaped
}

func (n *graphNode) draw(b *strings.Builder) {
	name := []rune(n.name)
	if len(name) > graphNameMax {
		name = append(name[:graphNameMax-1], '…')
	}
	fmt.Fprintf(b, `<g><title>%s</title><rect class="g-box" x="%d" y="%d" width="%d" height="%d" rx="9"></rect><rect class="g-bar %s" x="%d" y="%d" width="5" height="%d" rx="2"></rect>`,
		template.HTMLEscapeString(n.name), n.x, n.y, graphNodeWidth, graphNodeHeight, n.tone, n.x, n.y+9, graphNodeHeight-18)
	fmt.Fprintf(b, `<text class="g-name" x="%d" y="%d">%s</text>`, n.x+14, n.y+22, template.HTMLEscapeString(string(name)))
	for i, s := range n.subs {
		class := "g-sub"
		if n.tone == "bad" && i == len(n.subs)-1 {
			class += " bad"
		}
		fmt.Fprintf(b, `<text class="%s" x="%d" y="%d">%s</text>`, class, n.x+14, n.y+40+16*i, template.HTMLEscapeString(s))
	}
	b.WriteString(`</g>`)
}

// graphNodes are the models and what they read that is no model, each in the
// column after those that it reads.
func graphNodes(models []Mart) []*graphNode {
	var out []*graphNode
	at := map[string]*graphNode{}
	add := func(n *graphNode) {
		at[n.name] = n
		out = append(out, n)
	}
	for _, m := range models {
		n := &graphNode{name: m.Name, tone: m.Tone(), reads: m.Reads}
		words := m.Kind
		if m.Kind == "table" || m.Kind == "incremental" {
			words += ", " + count(m.Rows) + " rows"
		}
		state := m.State
		switch {
		case len(m.TestsFailed) > 0:
			n.tone = "bad"
			state += " · " + tests(len(m.TestsFailed)) + " failed"
		case m.TestsPassed > 0:
			state += " · " + tests(m.TestsPassed) + " passed"
		}
		n.subs = []string{words, state}
		add(n)
	}
	for _, m := range models {
		for _, r := range m.Reads {
			if at[r] == nil {
				add(&graphNode{name: r, tone: "source", subs: []string{"table of the stream"}})
			}
		}
	}
	// The models are given in the order of their graph, so that one pass is
	// enough; a longer chain than there are models cannot be.
	for range models {
		for _, n := range out {
			for _, r := range n.reads {
				n.column = max(n.column, min(at[r].column+1, len(models)))
			}
		}
	}
	slices.SortStableFunc(out, func(x, y *graphNode) int { return x.column - y.column })
	return out
}

func tests(n int) string {
	if n == 1 {
		return "1 test"
	}
	return strconv.Itoa(n) + " tests"
}

// layGraph places the nodes and says how large the picture is.
func layGraph(nodes []*graphNode) (width, height int) {
	rows := map[int]int{}
	most := 0
	for _, n := range nodes {
		rows[n.column]++
		most = max(most, rows[n.column])
	}
	used := map[int]int{}
	for _, n := range nodes {
		// A short column stands in the middle.
		top := (most - rows[n.column]) * (graphNodeHeight + graphGapY) / 2
		n.x = 1 + n.column*(graphNodeWidth+graphGapX)
		n.y = 1 + top + used[n.column]*(graphNodeHeight+graphGapY)
		used[n.column]++
		width = max(width, n.x+graphNodeWidth+1)
	}
	return width, 2 + most*(graphNodeHeight+graphGapY) - graphGapY
}

// graphWords is the picture for those who do not see it.
func graphWords(nodes []*graphNode) string {
	var out []string
	for _, n := range nodes {
		if len(n.reads) > 0 {
			out = append(out, n.name+" reads "+strings.Join(n.reads, ", "))
		}
	}
	return "Models of gold: " + strings.Join(out, "; ")
}
