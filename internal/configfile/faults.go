package configfile

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
)

// Expand replaces each ${NAME} by the value of the environment variable; $${ is written for a literal ${. An empty variable is an error
// like an unset one, because the value would get another meaning: ":9253" in place of "${NODE_IP}:9253".
func Expand(s string, lookup func(string) (string, bool)) (string, error) {
	var b strings.Builder
	for {
		i := strings.Index(s, "${")
		if i < 0 {
			b.WriteString(s)
			return b.String(), nil
		}
		if i > 0 && s[i-1] == '$' {
			b.WriteString(s[:i-1] + "${")
			s = s[i+2:]
			continue
		}
		b.WriteString(s[:i])
		name, rest, closed := strings.Cut(s[i+2:], "}")
		if !closed || !isVariable(name) {
			return "", fmt.Errorf("%q does not name a variable: write ${NAME}, or $${ for the text ${", s[i:])
		}
		value, ok := lookup(name)
		if !ok {
			return "", fmt.Errorf("environment variable %s is not set: set it, or write the value here", name)
		}
		if value == "" {
			return "", fmt.Errorf("environment variable %s is empty: set it, or write the value here", name)
		}
		b.WriteString(value)
		s = rest
	}
}

func isVariable(name string) bool {
	for i, c := range name {
		letter := c == '_' || c >= 'A' && c <= 'Z' || c >= 'a' && c <= 'z'
		if !letter && (i == 0 || c < '0' || c > '9') {
			return false
		}
	}
	return name != ""
}

// Unreadable wraps the error of a configuration file that cannot be read, and adds the remedy.
func Unreadable(err error) error {
	remedy := "name another file with --config"
	switch {
	case errors.Is(err, fs.ErrNotExist):
		remedy = "create the file or name another with --config"
	case errors.Is(err, fs.ErrPermission):
		remedy = "run the command as root, or let this user read the file"
	}
	return fmt.Errorf("read configuration: %w: %s", err, remedy)
}
