package release

import (
	"bufio"
	"fmt"
	"io"
	"strings"
)

// WriteNotices writes the licence and notice texts of the components, each
// different text once, under the names of the components that it is of.
func WriteNotices(w io.Writer, components []Component) error {
	out := bufio.NewWriter(w)
	fmt.Fprintf(out, "weir is made of the software below, beside its own code (see LICENSE and NOTICE).\n\n")
	for _, c := range components {
		fmt.Fprintf(out, "%-60s %-44s %s\n", c.Name, c.Version, strings.Join(c.ids(), ", "))
	}
	of := map[string][]string{}
	var texts []string
	add := func(name, text string) {
		text = strings.TrimSpace(text)
		if of[text] == nil {
			texts = append(texts, text)
		}
		of[text] = append(of[text], name)
	}
	for _, c := range components {
		for _, l := range c.Licences {
			name := c.Name
			if strings.Contains(l.File, "/") {
				name += " (" + l.File + ")"
			}
			add(name, l.Text)
		}
		for _, n := range c.Notices {
			add(c.Name+" (notice)", n)
		}
	}
	rule := strings.Repeat("=", 78)
	for _, text := range texts {
		fmt.Fprintf(out, "\n%s\n%s\n%s\n\n%s\n", rule, strings.Join(of[text], "\n"), rule, text)
	}
	if err := out.Flush(); err != nil {
		return fmt.Errorf("write the notices: %w", err)
	}
	return nil
}
