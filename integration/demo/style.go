package main

import (
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// style is how text is set off: by colour on a terminal, not at all elsewhere.
type style struct{ colour bool }

// styleOf knows a terminal. NO_COLOR is what people set who want none (no-color.org).
func styleOf(f *os.File, noColor bool) style {
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return style{colour: err == nil && !noColor}
}

func (s style) paint(code, text string) string {
	if !s.colour {
		return text
	}
	return "\x1b[" + code + "m" + text + "\x1b[0m"
}

func (s style) bold(text string) string  { return s.paint("1", text) }
func (s style) faint(text string) string { return s.paint("2", text) }
func (s style) green(text string) string { return s.paint("32", text) }
func (s style) red(text string) string   { return s.paint("31", text) }

// indent sets text off from what surrounds it, without blank lines at its ends.
func indent(text, by string) string {
	text = strings.Trim(text, "\n")
	return by + strings.ReplaceAll(text, "\n", "\n"+by)
}
