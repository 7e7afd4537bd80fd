package config

import (
	"bytes"
	"fmt"
	"io"
	"strings"
)

const helpIntro = `Usage:

  latchkey [flags]      start a node
  latchkey lock ...     run a command under a lock (lock --help)
  latchkey locks ...    show locks and who waits for them (locks --help)
  latchkey version      print the version, as --version does
  latchkey help         print this help, as --help does

Each flag can also be set in the environment, as LATCHKEY_DATA_DIR or
ETCD_DATA_DIR for --data-dir. A flag comes before the environment, and
LATCHKEY_ before ETCD_.
`

const helpIdle = `Accepted from etcd's command lines, without effect, and with a warning
where a value asks for something:
`

const helpAbsent = `Known from etcd, but what they ask for can't be done, so that a node does not
start with them:
`

// WriteHelp writes the help text, in the table's groups.
func WriteHelp(w io.Writer) error {
	var b bytes.Buffer
	b.WriteString(helpIntro)
	var idle, absent []string
	for _, g := range newConfig().groups() {
		title := "\n" + g.title + ":\n"
		for _, o := range g.options {
			switch {
			case o.fileOnly || g.title == obsolete:
			case o.idle != "":
				idle = append(idle, "--"+o.name)
			case o.absent != "":
				absent = append(absent, "--"+o.name)
			default:
				b.WriteString(title)
				title = ""
				writeOption(&b, &o)
			}
		}
	}
	b.WriteString("\n" + helpIdle)
	writeLines(&b, "  ", idle)
	b.WriteString("\n" + helpAbsent)
	writeLines(&b, "  ", absent)
	if _, err := w.Write(b.Bytes()); err != nil {
		return fmt.Errorf("write help: %w", err)
	}
	return nil
}

func writeOption(b *bytes.Buffer, o *option) {
	fmt.Fprintf(b, "  --%s", o.name)
	if def := o.value.String(); o.value.kind() != kindSwitch || def == "true" {
		fmt.Fprintf(b, " '%s'", def)
	}
	b.WriteByte('\n')
	writeLines(b, "        ", strings.Fields(o.help+"."))
}

// writeLines writes words in lines of up to 79 characters, each after indent.
func writeLines(b *bytes.Buffer, indent string, words []string) {
	const width = 79
	line := indent
	for _, w := range words {
		if len(line)+len(w) > width && line != indent {
			b.WriteString(strings.TrimRight(line, " ") + "\n")
			line = indent
		}
		line += w + " "
	}
	b.WriteString(strings.TrimRight(line, " ") + "\n")
}
