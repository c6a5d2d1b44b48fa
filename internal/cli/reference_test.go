package cli

import (
	"bytes"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

var update = flag.Bool("update", false, "write docs/commands.md anew")

const commandDocs = "../../docs/commands.md"

const commandHead = `# Commands

Every command with its flags, generated from the program:
` + "`go test -tags noduckdb ./internal/cli -run Docs -update`" + ` writes this page anew. What scripts
may rely on, and the exit codes, is in [REFERENCE.md](REFERENCE.md).
`

func TestDocsOfTheCommandsAreThoseOfTheProgram(t *testing.T) {
	for _, name := range []string{"WEIR_DATA", "WEIR_LOG_LEVEL", "WEIR_PYTHON"} {
		t.Setenv(name, "") // defaults of flags
	}
	var b bytes.Buffer
	b.WriteString(commandHead)
	root := newRoot(&globals{stdout: io.Discard, stderr: io.Discard})
	root.InitDefaultCompletionCmd()
	writeCommand(&b, root)
	if *update {
		if err := os.WriteFile(commandDocs, b.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(commandDocs)
	if err != nil || !bytes.Equal(got, b.Bytes()) {
		t.Errorf("docs/commands.md is not what the program says (%v): go test -tags noduckdb ./internal/cli -run Docs -update", err)
	}
}

// writeCommand writes a command and those below it.
func writeCommand(w io.Writer, c *cobra.Command) {
	if c.Hidden || c.Name() == "help" || c.Parent() != nil && c.Parent().Name() == "completion" {
		return
	}
	fmt.Fprintf(w, "\n## %s\n\n%s.\n\n", c.CommandPath(), strings.TrimSuffix(c.Short, "."))
	if c.Runnable() {
		fmt.Fprintf(w, "```\n%s\n```\n", c.UseLine())
	}
	if long := strings.TrimSpace(c.Long); long != "" && c.Name() != "completion" {
		fmt.Fprintf(w, "\n```text\n%s\n```\n", long)
	}
	flags := c.NonInheritedFlags()
	if !c.HasParent() {
		flags = c.PersistentFlags()
	}
	first := true
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Hidden || f.Name == "help" {
			return
		}
		if first {
			fmt.Fprint(w, "\n| flag | default | |\n|---|---|---|\n")
			first = false
		}
		value, usage := pflag.UnquoteUsage(f)
		name := "--" + f.Name
		if f.Shorthand != "" {
			name = "-" + f.Shorthand + ", " + name
		}
		if value != "" {
			name += " " + value
		}
		def := f.DefValue
		if def == "[]" || def == "false" || def == "0" || def == "0s" {
			def = ""
		}
		if def != "" {
			def = "`" + def + "`"
		}
		usage = strings.ReplaceAll(strings.ReplaceAll(usage, "\n", " "), "|", `\|`)
		fmt.Fprintf(w, "| `%s` | %s | %s |\n", strings.ReplaceAll(name, "|", `\|`), strings.ReplaceAll(def, "|", `\|`), usage)
	})
	for _, sub := range c.Commands() {
		writeCommand(w, sub)
	}
}
