package cli

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// newMan writes manual pages, one a command. It is what packages are made with,
// not a command for users.
func newMan() *cobra.Command {
	return &cobra.Command{
		Use:    "man DIR",
		Short:  "Write a manual page for each command into a folder",
		Hidden: true,
		Args:   cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return writeManPages(cmd.Root(), args[0])
		},
	}
}

func writeManPages(cmd *cobra.Command, dir string) error {
	if cmd.Hidden || cmd.Name() == "help" {
		return nil
	}
	name := strings.ReplaceAll(cmd.CommandPath(), " ", "-")
	if err := os.WriteFile(filepath.Join(dir, name+".1"), manPage(cmd, name), 0o644); err != nil {
		return fmt.Errorf("write a manual page: %w", err)
	}
	for _, c := range cmd.Commands() {
		if err := writeManPages(c, dir); err != nil {
			return err
		}
	}
	return nil
}

// roff escapes what begins a request or an escape in roff, and what is not ASCII.
func roff(s string) string {
	s = strings.NewReplacer(`\`, `\e`, "-", `\-`).Replace(s)
	lines := strings.Split(s, "\n")
	for i, l := range lines {
		if strings.HasPrefix(l, ".") || strings.HasPrefix(l, "'") {
			lines[i] = `\&` + l
		}
	}
	var b strings.Builder
	for _, r := range strings.Join(lines, "\n") {
		if r < 128 {
			b.WriteRune(r)
		} else {
			fmt.Fprintf(&b, `\[u%04X]`, r)
		}
	}
	return b.String()
}

// manPage is the page of one command. It has no date: a package is the same
// however often it is built.
func manPage(cmd *cobra.Command, name string) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, ".TH \"%s\" 1 \"\" \"weir %s\" \"Weir\"\n", strings.ToUpper(roff(name)), roff(Version))
	fmt.Fprintf(&b, ".SH NAME\n%s \\- %s\n", roff(name), roff(cmd.Short))
	fmt.Fprintf(&b, ".SH SYNOPSIS\n.B %s\n", roff(cmd.UseLine()))
	if cmd.Long != "" {
		fmt.Fprintf(&b, ".SH DESCRIPTION\n.nf\n%s\n.fi\n", roff(cmd.Long))
	}
	manFlags(&b, "OPTIONS", cmd.NonInheritedFlags())
	manFlags(&b, "GLOBAL OPTIONS", cmd.InheritedFlags())
	if cmd.HasAvailableSubCommands() {
		fmt.Fprintf(&b, ".SH COMMANDS\n")
		for _, c := range cmd.Commands() {
			if !c.Hidden && c.Name() != "help" {
				fmt.Fprintf(&b, ".TP\n.B %s\n%s (%s(1))\n", roff(c.Name()), roff(c.Short), roff(name+"-"+c.Name()))
			}
		}
	}
	if cmd.HasParent() {
		fmt.Fprintf(&b, ".SH SEE ALSO\n%s(1)\n", roff(strings.ReplaceAll(cmd.Parent().CommandPath(), " ", "-")))
	} else {
		fmt.Fprintf(&b, ".SH EXIT STATUS\n")
		for _, e := range exitCodes {
			fmt.Fprintf(&b, ".TP\n.B %s\n%s\n", e.code, roff(e.text))
		}
	}
	return b.Bytes()
}

func manFlags(b *bytes.Buffer, title string, flags *pflag.FlagSet) {
	if !flags.HasAvailableFlags() {
		return
	}
	fmt.Fprintf(b, ".SH %s\n", title)
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Hidden {
			return
		}
		value, usage := pflag.UnquoteUsage(f)
		spelt := "--" + f.Name
		if f.Shorthand != "" {
			spelt = "-" + f.Shorthand + ", " + spelt
		}
		fmt.Fprintf(b, ".TP\n.B %s\n%s\n", roff(strings.TrimSpace(spelt+" "+value)), roff(usage))
	})
}

// exitCodes are CONTRACT's, for the first page.
var exitCodes = []struct{ code, text string }{
	{"0", "done, or a clean stop"},
	{"1", "runtime error; safe to start again"},
	{"2", "usage or configuration"},
	{"3", "source data loss or a changed source"},
	{"4", "audit mismatch, or a proof violated"},
	{"5", "fenced: another instance holds the query"},
	{"6", "commit outcome unknown after the deadline; safe to start again, the next start finds out"},
	{"7", "checkpoint missing, incompatible or corrupt, or a sink rewound"},
	{"8", "store, catalog or broker unreachable past the deadline; safe to start again"},
	{"9", "schema conflict, or the dead-letter limit"},
	{"10", "inconclusive: run it again"},
	{"130, 143", "stopped by a signal before a clean stop"},
}
